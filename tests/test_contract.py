"""What every method in the registry promises, in one call and in phases. A new method gets these tests by its row."""

import contextlib
import copy
import inspect
import io
import itertools
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import BASES, EVERY_METHOD, EVERY_ROW, assert_same, normalised, problem, same, start
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from esam import METHODS, SAM
from esam.optim import Gradients, SharpnessAware
from esam.optim.perturb import perturbed

every_method = pytest.mark.parametrize("name", EVERY_METHOD)
every_row = pytest.mark.parametrize("name", EVERY_ROW)


# One step -------------------------------------------------------------------------------------------------------------


@every_row
def test_phases_closures_and_a_loop_over_passes_take_the_step_of_a_loss_function_bit_for_bit(name):
    runs = [start(name, normalised, batch=16) for _ in range(5)]
    for number in range(7):
        for how, (p, optimizer) in enumerate(runs):
            torch.manual_seed(number)
            if how == 0:
                p.step(optimizer)
            elif how == 1:
                optimizer.accumulate(p.loss_of, p.x, p.y)
                optimizer.gradient()
                optimizer.step()
            elif how == 2:
                for x, y in optimizer.passes(p.x, p.y):
                    optimizer.backward(F.cross_entropy(p.model(x), y, reduction="none"))
                optimizer.step()
            else:
                optimizer.step(p.closure if how == 3 else [p.closure], batch_size=16 if how == 3 else [16])
    for p, _ in runs[1:]:
        assert same(runs[0][0].model.state_dict(), p.model.state_dict())


@every_row
def test_the_loss_and_what_else_is_returned_are_the_first_passs_in_the_order_of_the_batch(name):
    p, optimizer = start(name)
    for _ in range(2):
        with torch.no_grad():
            expected = p.model(p.x)

        def loss_of(x, y):
            logits = p.model(x)
            return F.cross_entropy(logits, y, reduction="none"), logits, {"x": x}

        loss, logits, extra = p.step(optimizer, loss_of)
        assert not logits.requires_grad and not loss.requires_grad
        rows = slice(None) if len(logits) == len(p.x) else [(p.x == row).all(1).nonzero().item() for row in extra["x"]]
        if not optimizer.steps > 1 or "Momentum" not in type(optimizer).__name__:  # which visits theta + eps alone
            torch.testing.assert_close(logits, expected[rows], rtol=0, atol=1e-12)
            torch.testing.assert_close(loss, F.cross_entropy(expected[rows], p.y[rows]), rtol=0, atol=1e-12)
        torch.testing.assert_close(extra["x"], p.x[rows], rtol=0, atol=0)


@every_row
def test_everything_returns_bit_for_bit_whichever_call_of_the_loss_is_interrupted(name):
    p, optimizer = start(name, normalised)
    p.step(optimizer)
    optimizer.register_step_pre_hook(lambda *_: assert_same(p.weights, theta))
    for failing in itertools.count(1):
        theta = p.weights
        before, storage = copy.deepcopy(p.model.state_dict()), [w.data_ptr() for w in p.model.parameters()]
        generator, random = optimizer.generator.get_state(), torch.get_rng_state()
        calls = itertools.count(1)

        def loss_of(x, y, failing=failing, calls=calls):
            losses = p.loss_of(x, y)
            if next(calls) == failing:
                raise KeyboardInterrupt("on purpose")
            return losses

        try:
            p.step(optimizer, loss_of)
        except KeyboardInterrupt:
            assert same(p.model.state_dict(), before)
            assert [w.data_ptr() for w in p.model.parameters()] == storage
            assert all(w.grad is None for w in p.model.parameters())
            assert torch.equal(optimizer.generator.get_state(), generator)
            assert torch.equal(torch.get_rng_state(), random)
        else:
            break
    assert failing > 1  # it did raise at least once


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_leaving_a_perturbation_restores_theta_bit_for_bit(error):
    weight, eps = torch.randn(2, 100).unbind()
    theta = weight.clone()
    with contextlib.suppress(KeyboardInterrupt), perturbed([weight], [1e-3 * eps]):
        assert not torch.equal(weight, theta)
        if error is not None:
            raise error
    assert torch.equal(weight, theta)


def test_an_interrupt_at_any_call_of_a_perturbation_can_be_taken_back():
    weight, eps = torch.randn(2, 100).unbind()
    theta = weight.clone()
    for number in itertools.count(1):
        calls, held = itertools.count(1), perturbed([weight], [1e-3 * eps])

        def strike(frame, event, argument, number=number, calls=calls):
            inside = frame.f_code.co_filename == inspect.getfile(perturbed) and event in ("call", "c_call", "c_return")
            if inside and next(calls) == number:
                raise KeyboardInterrupt

        profile = sys.getprofile()
        try:
            sys.setprofile(strike)
            with held:
                pass
        except KeyboardInterrupt:
            held.restore()  # as an error in a step does
            assert torch.equal(weight, theta), number
        else:
            break
        finally:
            sys.setprofile(profile)
            torch.set_grad_enabled(True)  # as the phase of a step does
    assert number > 10


@every_row
def test_an_overflow_in_either_pass_skips_the_step_and_nothing_is_remembered_of_it(name):
    for at, form in itertools.product((1, 2), ("trainer", "step")):
        # to a fused base the scaler hands scaled gradients
        p, optimizer = start(name, dtype=torch.float32, base="fused adam" if form == "step" else "sgd")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        calls = itertools.count(1)

        def overflowing(x, y, p=p, at=at, calls=calls):
            losses = p.loss_of(x, y)
            return losses * torch.inf if torch.is_grad_enabled() and next(calls) == at else losses  # not while ranking

        for _ in range(2):  # LookSAM's third step perturbs
            p.step(optimizer, scaler=scaler)
            scaler.update()
        weights, state = p.weights, copy.deepcopy(optimizer.state_dict())
        if form == "trainer":
            optimizer.accumulate(overflowing, p.x, p.y, scaler=scaler)
            optimizer.gradient()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        else:
            p.step(optimizer, overflowing, scaler=scaler)
        scaler.update()
        if next(calls) <= at:
            continue  # it has one pass
        assert scaler.get_scale() == 2.0**11
        assert_same(p.weights, weights)
        assert optimizer.steps == 2
        now = optimizer.state_dict()
        for after in (now, state):  # the generator goes on
            after["param_groups"][0].pop(f"sharpness_aware_{type(optimizer).__name__}")
        torch.testing.assert_close(now, state, rtol=0, atol=0)
        p.step(optimizer, scaler=scaler)
        assert not torch.equal(p.weights[0], weights[0])


@pytest.mark.parametrize("name", ["base", "sam", "asam", "looksam", "fsam", "gsam", "esam-sds", "slicesam", "msam"])
def test_nothing_is_read_back_from_the_device(name):
    """FakeTensorMode refuses any value that the host asks for; drawing masks (SWP) and AE-SAM's decision ask."""
    with FakeTensorMode():
        layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
        p, optimizer = start(name, lambda dtype: nn.Sequential(*layers), batch=16, dtype=torch.float32)
        for _ in range(4):
            assert p.step(optimizer).shape == ()


@every_method
def test_a_first_gradient_without_direction_never_reaches_the_weights_nor_later_steps(name):
    for value in (0.0, float("inf"), float("nan")):
        p, optimizer = start(name)
        for _ in range(4):
            p.step(optimizer)
        factors = itertools.chain([value], itertools.repeat(1.0))
        eps = p.visited(optimizer, lambda x, y, p=p, factors=factors: p.loss_of(x, y) * next(factors))
        assert len(eps) > 1
        if "decay" not in METHODS[name].options() or value != 0:  # F-SAM's direction leaves a mean out: it is not zero
            assert not any(e.any() for at in eps for e in at)
        assert all(torch.isfinite(w).all() for w in p.weights)  # the second gradient was healthy
        for kept in (getattr(optimizer, name) for name in optimizer.remembered):
            tensors = kept.tensors if isinstance(kept, Gradients) else [torch.as_tensor(kept)]
            assert all(torch.isfinite(t).all() for t in tensors)


# Later steps ----------------------------------------------------------------------------------------------------------


@every_row
def test_a_resumed_run_continues_bit_for_bit(name):
    p, optimizer = start(name, normalised, base="adamw")  # whose state has numbers and tensors
    for _ in range(7):
        p.step(optimizer)
    file = io.BytesIO()
    saved = {"model": p.model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    torch.save(saved, file)
    straight = [float(p.step(optimizer)) for _ in range(9)]

    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    q, resumed = start(name, normalised, base="adamw", seed=99)
    nn.init.ones_(q.model[0].weight)  # what it needs must come from the checkpoint
    q.model.load_state_dict(loaded["model"])
    resumed.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["random"])
    assert [float(q.step(resumed)) for _ in range(9)] == straight
    assert same(p.model.state_dict(), q.model.state_dict())


@every_row
def test_a_deep_copy_and_a_pickled_one_train_on_by_themselves_and_alike(name):
    p, optimizer = start(name)
    for _ in range(3):
        p.step(optimizer)
    copies = copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
    expected = [float(p.step(optimizer)) for _ in range(6)]
    for twin in copies:
        q = copy.copy(p)
        q.model = twin.model
        assert [float(q.step(twin)) for _ in range(6)] == expected
        assert same(p.model.state_dict(), q.model.state_dict())


@every_row
def test_a_gradient_that_nobody_stepped_by_is_forgotten(name):
    (p, optimizer), (q, twin) = start(name), start(name)
    state = twin.generator.get_state()
    optimizer.accumulate(p.loss_of, p.x[:3], p.y[:3])
    optimizer.gradient()
    optimizer.generator.set_state(state)  # draws alone go on
    for _ in range(3):
        assert p.step(optimizer) == q.step(twin)
    assert_same(p.weights, q.weights)


def after_five_steps(name, torchs, **seed):
    p = problem()
    torch.manual_seed(torchs)
    base = BASES["sgd"](p.model.parameters())
    keys = set(base.param_groups[0])
    optimizer = METHODS[name](base, p.model, **seed)
    torch.manual_seed(99)  # what comes later has no say
    state = torch.get_rng_state()
    for _ in range(5):
        p.step(optimizer)
    optimizer.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    # nothing of ours is in the base: it can be wrapped again
    assert set(base.param_groups[0]) == keys
    assert {key for own in base.state.values() for key in own} == {"momentum_buffer"}
    return p.weights


@every_row
def test_draws_follow_the_seed_or_torchs_own_and_leave_the_global_stream_and_the_base_alone(name):
    one = after_five_steps(name, torchs=7)
    assert_same(one, after_five_steps(name, torchs=3, seed=7))
    other = after_five_steps(name, torchs=7, seed=8)
    settings = METHODS[name].effective()
    draws = {"beta", "share", "gamma"} & set(settings) and settings.get("ranking") != "exact"
    if draws or settings.get("beta", 1) < 1:
        assert not all(map(torch.equal, one, other))


# In phases -----------------------------------------------------------------------------------------------------------

SPLIT = ((0, 5), (5, 12))


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


@pytest.mark.parametrize("name", ["base", "sam", "looksam", "esam", "slicesam"])
def test_a_trainer_that_unscales_and_clips_gets_the_step_without_a_scaler(name):
    """A scale of a power of two cancels, but for the roundings of sums that are scaled before or after."""
    (p, plain), (q, scaled) = start(name, dtype=torch.float32), start(name, dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for _ in range(4):
        in_phases(p, plain, between=lambda: clip(p))
        for x, y in micro_batches(q):
            scaled.accumulate(q.loss_of, x, y, scaler=scaler)
        scaled.gradient()
        scaler.unscale_(scaled)  # the order of Lightning and Accelerate
        clip(q)
        scaler.step(scaled)
        scaler.update()
        assert_same(p.weights, q.weights, atol=1e-6)


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


# Where the wrapper alone decides --------------------------------------------------------------------------------------


def test_it_is_a_torch_optimizer_on_the_bases_own_groups():
    _, optimizer = start("esam")
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is optimizer.base.param_groups
    assert optimizer.state is optimizer.base.state
    assert optimizer.defaults is optimizer.base.defaults
    optimizer.base.load_state_dict(optimizer.base.state_dict())  # torch puts new lists in place
    assert optimizer.param_groups is optimizer.base.param_groups


def test_a_caller_without_gradients_gets_the_same_step():
    """Some trainers call step under no_grad, as torch's own optimizers allow."""
    (p, optimizer), (q, twin) = start("esam"), start("esam")
    for _ in range(2):
        expected = p.step(optimizer)
        with torch.no_grad():
            assert q.step(twin) == expected
    assert_same(p.weights, q.weights)


def test_a_parameter_without_a_gradient_or_with_one_in_one_pass_only_is_left_alone():
    for name in EVERY_METHOD:
        p, optimizer = start(name)
        unused, extra = (nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
        optimizer.add_param_group({"params": [unused]})
        optimizer.add_param_group({"params": [extra], "lr": 0.0, "weight_decay": 0.0})
        for number in range(6):
            calls = itertools.count(number)

            def loss_of(x, y, calls=calls, p=p, extra=extra):
                losses = p.loss_of(x, y)
                return losses + extra.sum() if next(calls) % 2 else losses

            p.step(optimizer, loss_of)
            assert torch.equal(extra, torch.ones_like(extra))
        assert torch.equal(unused, torch.ones_like(unused))


def test_the_bases_own_checkpoint_is_continued_as_the_base_would():
    """Seen at rho = 0, where the method is its base: momentum comes along, and the settings stay."""
    p = problem()
    base = BASES["sgd"](p.model.parameters())

    def step_alone():
        base.zero_grad()
        p.closure(slice(None)).mean().backward()
        base.step()

    for _ in range(3):
        step_alone()
    q = copy.copy(p)
    q.model = copy.deepcopy(p.model)
    optimizer = METHODS["esam"](torch.optim.SGD(q.model.parameters(), lr=0.7), q.model, rho=0.0)
    optimizer.load_state_dict(copy.deepcopy(base.state_dict()))  # torch shares tensors
    for _ in range(3):
        step_alone()
        q.step(optimizer)
    assert_same(p.weights, q.weights)
