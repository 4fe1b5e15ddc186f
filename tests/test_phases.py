"""accumulate, gradient, step: are the three phases one step, whoever clips, unscales or skips between them?"""

import copy
import inspect

import pytest
import torch
from conftest import EVERY_METHOD, EVERY_ROW, assert_same, mlp, problem, sgd
from torch import nn

from esam import METHODS, SAM
from esam.optim import SharpnessAware

SETTINGS = {"looksam": {"k": 2}}  # so that both kinds of its steps come up
SPLIT = ((0, 5), (5, 12))


def start(name, build=mlp, dtype=torch.float64, **settings):
    p = problem(build, dtype=dtype)
    return p, METHODS[name](sgd(p, weight_decay=1e-3), p.model, seed=3, **SETTINGS.get(name, {}), **settings)


def micro_batches(p):
    return [(p.x[a:b], p.y[a:b]) for a, b in SPLIT]


def in_phases(p, optimizer, loss_of=None, between=lambda: None, **how):
    """Take a step by micro-batches of five and seven samples."""
    for x, y in micro_batches(p):
        optimizer.accumulate(loss_of or p.loss_of, x, y, **how)
    loss = optimizer.gradient()
    between()
    optimizer.step()
    return loss


def clip(p):
    return nn.utils.clip_grad_norm_(p.model.parameters(), 0.01)


def test_accumulate_returns_each_samples_loss_at_theta_detached():
    for name in EVERY_METHOD:
        p, optimizer = start(name)
        expected = [p.loss_of(*batch).detach() for batch in micro_batches(p)]
        found = [optimizer.accumulate(p.loss_of, *batch) for batch in micro_batches(p)]
        assert_same(found, expected)
        assert not any(losses.requires_grad for losses in found)
        assert float(optimizer.gradient()) == pytest.approx(float(torch.cat(expected).mean()), abs=1e-14)


@pytest.mark.parametrize("name", ["sam", "esam-swp", "slicesam"])
def test_a_list_of_closures_is_accumulated_micro_batches(name):
    (p, listed), (q, phased) = start(name), start(name)
    for _ in range(4):
        closures = [lambda keep, x=x, y=y: p.loss_of(x[keep], y[keep]) for x, y in micro_batches(p)]
        assert listed.step(closures, batch_size=[5, 7]) == in_phases(q, phased)
    assert_same(p.weights, q.weights)


@pytest.mark.parametrize("name", ["base", "sam", "looksam", "esam", "slicesam"])
def test_a_trainer_that_unscales_and_clips_gets_the_step_without_a_scaler(name):
    """A scale of a power of two cancels, but for the roundings of sums that are scaled before or after."""
    (p, plain), (q, scaled) = start(name, dtype=torch.float32), start(name, dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for _ in range(4):
        in_phases(p, plain, between=lambda: clip(p))
        in_phases_scaled(q, scaled, scaler)
        assert_same(p.weights, q.weights, atol=1e-6)


def in_phases_scaled(p, optimizer, scaler, loss_of=None):
    """Unscale, clip, step, update: the order of Lightning and Accelerate."""
    for x, y in micro_batches(p):
        optimizer.accumulate(loss_of or p.loss_of, x, y, scaler=scaler)
    optimizer.gradient()
    scaler.unscale_(optimizer)
    clip(p)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("name", ["base", "sam", "esam", "slicesam"])
def test_clipping_between_the_phases_equals_clipping_in_a_hook(name):
    (p, hooked), (q, phased) = start(name), start(name)
    norms = []
    hooked.register_step_pre_hook(lambda *_: norms.append(float(clip(p))))
    for _ in range(4):
        in_phases(p, hooked)
        in_phases(q, phased, between=lambda: norms.append(float(clip(q))))
    assert norms[::2] == norms[1::2]
    assert min(norms) > 0.01  # it clipped
    assert_same(p.weights, q.weights)


def test_the_base_steps_by_the_very_gradient_that_the_trainer_left():
    p, optimizer = start("sam")
    before = p.weights
    optimizer.accumulate(p.loss_of, p.x, p.y)
    optimizer.gradient()
    for w in p.model.parameters():
        w.grad = torch.ones_like(w)
    optimizer.step()
    for w, b in zip(p.weights, before, strict=True):
        torch.testing.assert_close(w, b - 0.05 * (1 + 1e-3 * b), rtol=0, atol=1e-15)


def test_a_mean_loss_will_do_where_no_ranking_reads_single_ones():
    for name in set(EVERY_ROW) - {"esam", "esam-sds"}:
        (p, single), (q, mean) = start(name), start(name)
        for _ in range(4):
            one, other = in_phases(p, single), in_phases(q, mean, lambda x, y, q=q: q.loss_of(x, y).mean())
            assert float(one) == pytest.approx(float(other), abs=1e-13)
        assert_same(p.weights, q.weights, atol=1e-13)


def test_mean_losses_of_micro_batches_whose_sizes_nobody_gave_count_alike():
    (p, optimizer), (q, twin) = start("sam", rho=0.0), start("sam", rho=0.0)
    for x, y in micro_batches(p):
        optimizer.accumulate(lambda keep, x=x, y=y: p.loss_of(x[keep], y[keep]).mean())
    optimizer.gradient()
    optimizer.step()
    twin.step(lambda keep: torch.stack([q.loss_of(x, y).mean() for x, y in micro_batches(q)]).mean())
    assert_same(p.weights, q.weights, atol=1e-14)


def test_a_mean_loss_is_refused_where_a_ranking_reads_single_ones():
    for ranking in ("exact", lambda batch: -batch.losses):
        p, optimizer = start("esam", ranking=ranking)
        with pytest.raises(ValueError, match="per sample"):
            p.step(optimizer, lambda x, y, p=p: p.loss_of(x, y).mean())


def test_a_closure_without_a_size_is_refused_where_its_batch_is_cut():
    for name, settings in (("esam-random", {}), ("base-part", {}), ("slicesam", {}), ("sam", {"m": 4})):
        p, optimizer = start(name, **settings)
        before = p.weights
        with pytest.raises(ValueError, match="batch_size"):
            optimizer.step(lambda keep, p=p: p.closure(keep).mean())
        assert_same(p.weights, before)


def test_a_loss_that_is_not_perturbed_adds_its_gradient_at_theta():
    """With momentum 0 and no decay, the step is -lr times the sum of SAM's gradient and the other's."""
    p, q = problem(), problem()
    both, sam = (SAM(torch.optim.SGD(r.model.parameters(), lr=0.1), r.model, rho=0.1) for r in (p, q))
    other = lambda model: (sum(w.square().sum() for w in model.parameters()),)  # noqa: E731
    before, plain = p.weights, torch.autograd.grad(other(p.model)[0], list(p.model.parameters()))
    both.accumulate(p.loss_of, p.x, p.y)
    both.accumulate(lambda _: other(p.model)[0], p.x, perturb=False)
    loss = both.gradient()
    both.step()
    assert loss == q.step(sam)
    for w, s, b, g in zip(p.weights, q.weights, before, plain, strict=True):
        torch.testing.assert_close(w, s - 0.1 * g, rtol=0, atol=1e-14)
        assert not torch.equal(w, b)


@pytest.mark.parametrize("before", ["nothing", "accumulate", "phases", "step", "broken loop"])
def test_a_step_without_a_gradient_says_what_to_call_first_and_changes_nothing(before):
    p, optimizer = start("sam")
    if before == "accumulate":
        optimizer.accumulate(p.loss_of, p.x, p.y)
    elif before == "phases":
        in_phases(p, optimizer)
    elif before == "step":
        p.step(optimizer)
    elif before == "broken loop":
        for _ in optimizer.passes(p.x, p.y):
            break
    weights = p.weights
    with pytest.raises(ValueError, match="gradient"):
        optimizer.step()
    assert_same(p.weights, weights)
    if before != "accumulate":
        with pytest.raises(ValueError, match="accumulate"):
            optimizer.gradient()


def test_a_body_that_forgets_backward_and_a_backward_outside_of_a_loop_are_refused():
    p, optimizer = start("sam")
    weights = p.weights
    with pytest.raises(ValueError, match="backward"):
        for x, y in optimizer.passes(p.x, p.y):
            p.loss_of(x, y)
    with pytest.raises(ValueError, match="passes"):
        optimizer.backward(p.loss_of(p.x, p.y))
    assert_same(p.weights, weights)


def test_an_error_in_the_body_of_a_loop_restores_theta_at_once():
    p, optimizer = start("slicesam")
    weights, seen = p.weights, []
    with pytest.raises(RuntimeError, match="on purpose"):
        for x, y in optimizer.passes(p.x, p.y):
            seen.append(p.weights)
            if len(seen) == 4:  # the parts test, S, the rest, S again
                assert not torch.equal(p.weights[0], weights[0])
                raise RuntimeError("on purpose")
            optimizer.backward(p.loss_of(x, y))
    assert_same(p.weights, weights)
    assert all(w.grad is None for w in p.model.parameters())


@pytest.mark.parametrize("on", ["wrapper", "base"])
def test_schedulers_and_hooks_on_either_optimizer_see_each_step_once(on):
    p, optimizer = start("esam")
    target = optimizer if on == "wrapper" else optimizer.base
    scheduler = torch.optim.lr_scheduler.StepLR(target, step_size=1, gamma=0.1)
    seen = []
    target.register_step_pre_hook(lambda *_: seen.append("before"))
    target.register_step_post_hook(lambda *_: seen.append("after"))
    in_phases(p, optimizer)
    scheduler.step()
    p.step(optimizer)
    scheduler.step()
    assert seen == ["before", "after"] * 2
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0005)
    twin = copy.deepcopy(optimizer)  # a scheduled one can be copied
    assert twin.step(lambda x, y: nn.functional.cross_entropy(twin.model(x), y, reduction="none"), p.x, p.y) == p.step(
        optimizer
    )


def test_no_method_of_the_package_overrides_a_phase():
    phases = ("accumulate", "gradient", "step", "passes", "backward", "at", "radii")
    for row in METHODS.values():
        for phase in phases:
            assert inspect.getattr_static(row.build, phase) is inspect.getattr_static(SharpnessAware, phase)
