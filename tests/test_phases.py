"""accumulate, gradient, step: are the three phases one step, whoever clips, unscales or fails between them?"""

import copy
import inspect
import itertools
import math

import pytest
import torch
from conftest import EVERY_METHOD, EVERY_ROW, mlp, normalised, problem
from torch import nn

from esam import METHODS, SAM
from esam.optim import SharpnessAware, reference

every_row = pytest.mark.parametrize("name", EVERY_ROW)
every_method = pytest.mark.parametrize("name", EVERY_METHOD)
SETTINGS = {"looksam": {"k": 2}}  # so that both kinds of its steps come up
BY_LOSSES = ("esam", "esam-sds", "esam-follow", "sds-level", "sam-unbiased")
"""Rows whose ranking reads single losses."""
SPLIT = (slice(0, 5), slice(5, 12))


def sgd(parameters, **settings):
    return torch.optim.SGD(parameters, **{"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, **settings})


def start(name, build=mlp, dtype=torch.float64, **settings):
    p = problem(build, dtype=dtype)
    return p, METHODS[name](sgd(p.model.parameters()), p.model, seed=3, **SETTINGS.get(name, {}), **settings)


def micro_batches(p, closure=None):
    """Return the closures of micro-batches of five and seven samples."""
    of_all = torch.arange(12)
    return [lambda keep, part=part: (closure or p.closure)(of_all[part][keep]) for part in SPLIT]


def mean_of(p):
    """Return the closure of a plain loop: the mean loss."""
    return lambda keep: p.closure(keep).mean()


def in_phases(optimizer, closures, between=lambda: None):
    for closure in closures:
        optimizer.accumulate(closure)
    loss = optimizer.gradient()
    between()
    optimizer.step()
    return loss


def assert_equal(a, b, **tolerance):
    for one, other in zip(a, b, strict=True):
        if tolerance:
            torch.testing.assert_close(one, other, rtol=0, **tolerance)
        else:
            assert torch.equal(one, other)


def everything(p, optimizer):
    """Return copies of all that a step may change."""
    kept = {"model": p.model.state_dict(), "optimizer": optimizer.state_dict(), "memory": optimizer.memory()}
    return copy.deepcopy(kept)


def assert_same_everything(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


# One step -------------------------------------------------------------------------------------------------------------


@every_row
def test_the_phases_equal_a_step_by_a_closure_and_by_a_list_of_one_bit_for_bit(name):
    (p, one), (q, listed), (r, phased) = (start(name, normalised) for _ in range(3))
    for seed in range(5):
        losses = []
        for take in (
            lambda: one.step(p.closure),
            lambda: listed.step([q.closure]),
            lambda: in_phases(phased, [r.closure]),
        ):
            torch.manual_seed(seed)  # dropout
            losses.append(take())
        assert losses[0] == losses[1] == losses[2]
    assert_same_everything(everything(p, one), everything(q, listed))
    assert_same_everything(everything(p, one), everything(r, phased))


@every_row
def test_the_phases_equal_a_step_by_unequal_micro_batches_bit_for_bit(name):
    (p, one), (q, phased) = start(name), start(name)
    for _ in range(5):
        assert one.step(micro_batches(p)) == in_phases(phased, micro_batches(q))
        assert_equal(p.weights, q.weights)
    assert_same_everything(everything(p, one), everything(q, phased))


@pytest.mark.parametrize("m", [None, 4])
@every_method
def test_accumulate_returns_each_samples_loss_at_theta_detached(name, m):
    p, optimizer = start(name, m=m)
    expected = [closure(slice(None)).detach() for closure in micro_batches(p)]
    found = [optimizer.accumulate(closure) for closure in micro_batches(p)]
    assert_equal(found, expected, atol=1e-14)  # m runs them in pieces, and kernels round by the shape of a batch
    assert not any(losses.requires_grad for losses in found)
    assert float(optimizer.gradient()) == pytest.approx(float(torch.cat(expected).mean()), abs=1e-14)


@every_row
def test_clipping_between_the_phases_equals_clipping_in_a_hook(name):
    (p, hooked), (q, phased) = start(name), start(name)
    norms = []

    def clip(weights):
        norms.append(float(nn.utils.clip_grad_norm_(weights, 0.01)))

    hooked.register_step_pre_hook(lambda *_: clip(p.model.parameters()))
    for _ in range(4):
        hooked.step(p.closure)
        in_phases(phased, [q.closure], lambda: clip(q.model.parameters()))
    assert norms[::2] == norms[1::2]
    assert min(norms) > 0.01  # it clipped
    assert_equal(p.weights, q.weights)


def test_the_base_steps_by_the_very_gradient_that_the_trainer_left():
    p, optimizer = start("sam")
    before = p.weights
    optimizer.accumulate(p.closure)
    optimizer.gradient()
    for w in p.model.parameters():
        w.grad.fill_(1.0)
    optimizer.step()
    # the first step of SGD with momentum: theta - lr (g + decay theta), g = 1
    assert_equal(p.weights, [w - 0.05 * (1 + 1e-3 * w) for w in before], atol=1e-15)


def cpu_scaler(scale=2.0**12):
    return torch.amp.GradScaler("cpu", init_scale=scale)


def as_trainers_do(optimizer, closures, scaler):
    """Unscale, clip, step, update: the order of Lightning and Accelerate. Gives the norm before clipping."""
    for closure in closures:
        optimizer.accumulate(closure, scaler)
    optimizer.gradient(scaler)
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_([w for group in optimizer.param_groups for w in group["params"]], 0.01)
    scaler.step(optimizer)
    scaler.update()
    return norm


@every_row
def test_a_trainer_that_unscales_and_clips_gets_the_step_without_a_scaler_bit_for_bit(name):
    (p, plain), (q, scaled) = start(name, dtype=torch.float32), start(name, dtype=torch.float32)
    scaler = cpu_scaler()
    for _ in range(4):
        in_phases(plain, micro_batches(p), lambda: nn.utils.clip_grad_norm_(p.model.parameters(), 0.01))
        assert as_trainers_do(scaled, micro_batches(q), scaler) > 0.01
        assert_equal(p.weights, q.weights)  # a scale of a power of two cancels


@pytest.mark.parametrize(("name", "at"), [(n, at) for n in EVERY_ROW for at in (1, 3) if at == 1 or n in EVERY_METHOD])
def test_an_overflow_that_the_trainer_skips_leaves_weights_and_state_and_the_next_step_alone(name, at):
    """The scaler never calls step(): the phases begin anew. The losses of one pass are inf."""
    p, optimizer = start(name, dtype=torch.float32)
    scaler = cpu_scaler()
    as_trainers_do(optimizer, micro_batches(p), scaler)
    if name == "looksam":
        as_trainers_do(optimizer, micro_batches(p), scaler)  # on to a step that perturbs
    calls = itertools.count(1)
    weights, state, memory = p.weights, copy.deepcopy(optimizer.base.state_dict()), copy.deepcopy(optimizer.memory())

    def overflowing(keep):
        losses = p.closure(keep)
        return losses * torch.inf if torch.is_grad_enabled() and next(calls) == at else losses  # not while ranking

    as_trainers_do(optimizer, micro_batches(p, overflowing), scaler)
    assert scaler.get_scale() == 2.0**11
    assert_equal(p.weights, weights)
    assert_same_everything(optimizer.base.state_dict(), state)
    if name == "looksam":
        assert_same_everything(optimizer.memory(), memory)  # the step does not count
    assert all(math.isfinite(norm) for norm in optimizer.memory().get("norms", {}).values())

    q, twin = start(name, dtype=torch.float32)
    q.model.load_state_dict(p.model.state_dict())
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    as_trainers_do(optimizer, micro_batches(p), scaler)
    in_phases(twin, micro_batches(q), lambda: nn.utils.clip_grad_norm_(q.model.parameters(), 0.01))
    assert_equal(p.weights, q.weights)
    assert not torch.equal(p.weights[0], weights[0])


# The methods ----------------------------------------------------------------------------------------------------------


def by_reference(p, gradient_of, steps):
    """Train the problem by a twin: its gradient, the plain base."""
    base = sgd(p.model.parameters())
    weights = list(p.model.parameters())
    for _ in range(steps):
        for w, g in zip(weights, gradient_of(p.closure, weights), strict=True):
            w.grad = g
        base.step()


def test_looksam_in_phases_equals_its_paper():
    p, optimizer = start("looksam")
    for _ in range(6):
        in_phases(optimizer, micro_batches(p))
    q = problem()
    by_reference(q, reference.LookSAM(rho=0.05, k=2, alpha=0.7), 6)
    assert_equal(p.weights, q.weights, atol=1e-12)


@pytest.mark.parametrize("given", [False, True], ids=["size measured", "size given"])
def test_groups_of_m_samples_go_on_in_the_next_micro_batch(given):
    """m = 4 over micro-batches of 5 and 7: the groups are 0-3, 4-7, 8-11, whatever the cuts."""
    p = problem()
    optimizer = SAM(sgd(p.model.parameters()), p.model, rho=0.3, m=4)
    for _ in range(3):
        for closure, size in zip(micro_batches(p), (5, 7), strict=True):
            optimizer.accumulate(closure, batch_size=size if given else None)
        optimizer.gradient()
        optimizer.step()
    q = problem()

    def groups_of_four(losses, weights):
        found = []
        for first in (0, 4, 8):
            samples = torch.arange(first, first + 4)
            found.append(reference.sam(lambda keep, samples=samples: losses(samples[keep]), weights, rho=0.3))
        return [sum(gradients) / 3 for gradients in zip(*found, strict=True)]

    by_reference(q, groups_of_four, 3)
    assert_equal(p.weights, q.weights, atol=1e-12)


@every_method
def test_phases_at_rho_zero_are_the_plain_loop_bit_for_bit(name):
    p, optimizer = start(name, rho=0.0)
    q = problem()
    base = sgd(q.model.parameters())
    for _ in range(3):
        loss = in_phases(optimizer, [p.closure])
        base.zero_grad()
        expected = q.closure(slice(None)).mean()
        expected.backward()
        base.step()
        assert loss == expected
    assert_equal(p.weights, q.weights)


# Scalar closures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [None, 4])
@pytest.mark.parametrize("name", [name for name in EVERY_ROW if name not in BY_LOSSES])
def test_a_mean_loss_will_do_where_no_ranking_reads_single_ones(name, m):
    settings = {"m": m} if name in EVERY_METHOD else {}
    (p, single), (q, scalar) = start(name, **settings), start(name, **settings)
    for _ in range(4):
        whole = single.step(micro_batches(p))
        mean = scalar.step(micro_batches(q, mean_of(q)), batch_size=[5, 7])
        assert float(mean) == pytest.approx(float(whole), abs=1e-14)
    assert_equal(p.weights, q.weights, atol=1e-13)


def test_mean_losses_of_micro_batches_whose_sizes_nobody_gave_count_alike():
    p, optimizer = start("sam")
    loss = in_phases(optimizer, micro_batches(p, mean_of(p)))
    q = problem()
    halves = [closure(slice(None)).mean() for closure in micro_batches(q)]
    assert float(loss) == pytest.approx(sum(half.item() for half in halves) / 2, abs=1e-14)
    twice = lambda keep: torch.stack([closure(slice(None)).mean() for closure in micro_batches(q)])  # noqa: E731
    weights = list(q.model.parameters())
    for w, g in zip(weights, reference.sam(twice, weights, rho=0.05), strict=True):
        w.grad = g
    sgd(weights).step()
    assert_equal(p.weights, q.weights, atol=1e-13)


@pytest.mark.parametrize("ranking", ["exact", "aligned", lambda batch: -batch.losses], ids=["exact", "aligned", "own"])
def test_a_mean_loss_is_refused_with_a_remedy_where_a_ranking_reads_single_ones(ranking):
    p, optimizer = start("esam", normalised, ranking=ranking)
    before = everything(p, optimizer)
    with pytest.raises(ValueError, match=r'ranks samples, so return one loss per sample \(reduction="none"\)'):
        optimizer.accumulate(mean_of(p), batch_size=12)
    assert_same_everything(everything(p, optimizer), before)


@pytest.mark.parametrize("name, settings", [("esam-random", {}), ("base-part", {}), ("sam", {"m": 4})])
def test_a_mean_over_an_unknown_number_of_samples_is_refused_where_some_of_them_are_drawn(name, settings):
    """Taken for one sample, the batch would train on its first sample alone."""
    p, optimizer = start(name, normalised, **settings)
    before = everything(p, optimizer)
    with pytest.raises(ValueError, match=r"size of the batch is not known; pass batch_size=len\(x\)"):
        optimizer.step(mean_of(p))
    assert_same_everything(everything(p, optimizer), before)


# Order and errors -----------------------------------------------------------------------------------------------------


def test_a_gradient_without_accumulate_says_what_to_call_first():
    p, optimizer = start("esam")
    with pytest.raises(ValueError, match=r"call accumulate\(closure\) for each micro-batch first"):
        optimizer.gradient()
    in_phases(optimizer, [p.closure])
    with pytest.raises(ValueError, match="nothing to work on"):
        optimizer.gradient()
    optimizer.accumulate(p.closure)
    optimizer.gradient()
    with pytest.raises(ValueError, match="nothing to work on"):
        optimizer.gradient()  # twice


@pytest.mark.parametrize("before", ["nothing", "accumulate", "phases", "step"])
def test_a_step_without_a_gradient_says_what_to_call_first_and_changes_nothing(before):
    p, optimizer = start("esam")
    if before == "accumulate":
        optimizer.accumulate(p.closure)
    elif before == "phases":
        in_phases(optimizer, [p.closure])
    elif before == "step":
        optimizer.step(p.closure)
    weights = p.weights
    with pytest.raises(ValueError, match=r"accumulate\(closure\) and gradient\(\) first, or pass step a closure"):
        optimizer.step()
    assert_equal(p.weights, weights)
    if before == "accumulate":  # what was accumulated is still there
        optimizer.gradient()
        optimizer.step()
        q, twin = start("esam")
        twin.step(q.closure)
        assert_equal(p.weights, q.weights)


@every_row
def test_a_gradient_that_nobody_stepped_by_is_forgotten(name):
    (p, optimizer), (q, twin) = start(name), start(name)
    optimizer.accumulate(p.closure)
    optimizer.gradient()
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # what it drew and remembers stays
    assert in_phases(optimizer, [p.closure]) == twin.step(q.closure)
    assert_equal(p.weights, q.weights)


POINTS = ("first micro-batch", "second micro-batch", "gradient", "hook before the base")


@pytest.mark.parametrize("how", ["phases", "step"])
@pytest.mark.parametrize(
    ("name", "point"), [(n, at) for n in EVERY_ROW for at in POINTS if at != "gradient" or n in EVERY_METHOD]
)
def test_an_error_in_any_phase_takes_the_whole_step_back(name, point, how):
    (p, optimizer), (q, twin) = start(name, normalised), start(name, normalised)
    for o, t in ((optimizer, p), (twin, q)):
        torch.manual_seed(0)
        in_phases(o, micro_batches(t))
        if name == "looksam":
            in_phases(o, micro_batches(t))
    before = everything(p, optimizer)
    broken = {"at": point}
    fed = []

    def closure(keep):
        losses = p.closure(keep)
        if torch.is_grad_enabled():
            fed.append(keep)
        reached = POINTS[min(len(fed), 3) - 1] if fed else None
        if torch.is_grad_enabled() and broken["at"] == reached:
            raise KeyboardInterrupt
        return losses

    def hook(*_):
        if broken["at"] == POINTS[3]:
            raise KeyboardInterrupt

    optimizer.register_step_pre_hook(hook)
    take = in_phases if how == "phases" else lambda o, closures: o.step(closures)
    with pytest.raises(KeyboardInterrupt):
        take(optimizer, micro_batches(p, closure))
    assert_same_everything(everything(p, optimizer), before)
    assert all(w.grad is None for w in p.model.parameters())
    broken["at"] = None
    with pytest.raises(ValueError, match="there is none"):
        optimizer.step()
    for o, t in ((optimizer, p), (twin, q)):
        torch.manual_seed(1)
        take(o, micro_batches(t))
    assert_same_everything(everything(p, optimizer), everything(q, twin))


@pytest.mark.parametrize("how", ["phases", "step"])
@every_row
def test_an_error_after_the_base_has_moved_the_weights_takes_nothing_back(name, how):
    """Half a step taken back would be none: statistics, draws and memory stay beside the weights they belong to."""
    (p, optimizer), (q, twin) = start(name, normalised), start(name, normalised)
    handle = optimizer.register_step_post_hook(lambda *_: 1 / 0)
    take = in_phases if how == "phases" else lambda o, closures: o.step(closures)
    torch.manual_seed(1)
    with pytest.raises(ZeroDivisionError):
        take(optimizer, [p.closure])
    handle.remove()
    torch.manual_seed(1)
    take(twin, [q.closure])
    assert_same_everything(everything(p, optimizer), everything(q, twin))
    with pytest.raises(ValueError, match="there is none"):
        optimizer.step()  # not twice by one gradient
    take(optimizer, [p.closure])


def test_a_bad_radius_after_a_skipped_step_does_not_take_that_step_back():
    p, optimizer = start("esam", normalised)
    optimizer.accumulate(p.closure)
    optimizer.gradient()  # an overflow, say: nobody calls step()
    before = everything(p, optimizer)
    optimizer.param_groups[0]["rho"] = float("nan")
    with pytest.raises(ValueError, match="rho must be a finite number"):
        optimizer.accumulate(p.closure)
    del optimizer.param_groups[0]["rho"]
    assert_same_everything(everything(p, optimizer), before)


@pytest.mark.parametrize("on", ["wrapper", "base"])
@every_row
def test_schedulers_and_hooks_on_either_optimizer_see_each_phased_step_once(name, on):
    p, optimizer = start(name)
    target = optimizer if on == "wrapper" else optimizer.base
    seen = []
    target.register_step_pre_hook(lambda *_: seen.append("before"))
    target.register_step_post_hook(lambda *_: seen.append("after"))
    scheduler = torch.optim.lr_scheduler.StepLR(target, step_size=1, gamma=0.1)
    for _ in range(2):
        in_phases(optimizer, micro_batches(p))
        scheduler.step()  # warns, and so fails, where it believes that no step came before
    assert seen == ["before", "after"] * 2
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0005)
    p, scheduled = start(name)
    q, by_hand = start(name)
    scheduler = torch.optim.lr_scheduler.StepLR(scheduled if on == "wrapper" else scheduled.base, 1, gamma=0.1)
    for step in range(2):
        in_phases(scheduled, [p.closure])
        scheduler.step()
        by_hand.param_groups[0]["lr"] = (0.05, 0.05 * 0.1)[step]
        in_phases(by_hand, [q.closure])
    assert_equal(p.weights, q.weights)


# Room for new methods -------------------------------------------------------------------------------------------------


class SampledCorrection(SharpnessAware):
    """g_B + w (g_S(theta + eps) - g_S(theta)), eps = rho g_S / ||g_S||, S the first third of each micro-batch."""

    parted = "drawn"

    def __init__(self, base, model, *, rho, w):
        super().__init__(base, model, rho=rho, m=None, perturbation="rank", seed=None)
        self.second_weight = w

    def part(self, size, generator):
        return torch.arange(0, size, 3)

    def remainder(self, batch, part):
        return {n: g - self.second_weight * part[n] for n, g in batch.items()}


@pytest.mark.parametrize("how", ["whole", "micro-batches", "scaled"])
def test_a_method_of_three_gradients_is_a_choice_of_parts(how):
    p = problem()
    optimizer = SampledCorrection(sgd(p.model.parameters()), p.model, rho=0.3, w=2.5)
    scaler = cpu_scaler()
    part = torch.tensor([0, 3, 6, 9])
    for _ in range(3):
        if how == "scaled":
            optimizer.step(p.closure, scaler=scaler)
            scaler.update()
        else:
            in_phases(optimizer, [p.closure] if how == "whole" else micro_batches(p))
    if how == "micro-batches":  # every third of five, every third of seven
        part = torch.tensor([0, 3, 5, 8, 11])
    q = problem()

    def by_hand(losses, weights):
        g_batch = reference.gradient(losses, weights)
        g_part = reference.gradient(losses, weights, part)
        eps = [0.3 * g / reference.norm(g_part) for g in g_part]
        moved = reference.at_perturbed(losses, weights, eps, lambda: part)
        return [b + 2.5 * (m - s) for b, m, s in zip(g_batch, moved, g_part, strict=True)]

    by_reference(q, by_hand, 3)
    assert_equal(p.weights, q.weights, atol=1e-12)


def test_no_method_of_the_package_overrides_a_phase():
    for method in (*(row.build for row in METHODS.values()), SampledCorrection):
        for phase in ("accumulate", "gradient", "step"):  # torch wraps the step of each class
            assert inspect.unwrap(getattr(method, phase)) is inspect.unwrap(getattr(SharpnessAware, phase))
