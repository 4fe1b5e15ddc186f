"""What every method in the registry promises. A new method gets these tests by its row."""

import copy
import io
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from conftest import EVERY_METHOD, EVERY_ROW, assert_same, mlp, normalised, problem
from lion_pytorch import Lion
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from esam.optim import Gradients

BASES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "lion": lambda params: Lion(params, lr=5e-3),
}

every_method = pytest.mark.parametrize("method", EVERY_METHOD.values(), ids=EVERY_METHOD)
every_row = pytest.mark.parametrize("method", EVERY_ROW.values(), ids=EVERY_ROW)
ESAM = EVERY_METHOD["esam"]  # where the wrapper alone decides, one method stands for all


def start(method, build=mlp, base="sgd", dtype=torch.float64, batch=12, **settings):
    p = problem(build, dtype=dtype, batch=batch)
    return p, method(BASES[base](p.model.parameters()), p.model, seed=3, **settings)


def snapshot(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), key


# One step -------------------------------------------------------------------------------------------------------------


@every_row
def test_phases_closures_and_a_loop_over_passes_take_the_step_of_a_loss_function_bit_for_bit(method):
    runs = [start(method, normalised, batch=16) for _ in range(5)]
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
        assert_equal(runs[0][0].model.state_dict(), p.model.state_dict())


@every_row
def test_the_loss_and_what_else_is_returned_are_the_first_passs_in_the_order_of_the_batch(method):
    p, optimizer = start(method)
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
def test_everything_returns_bit_for_bit_whichever_call_of_the_loss_is_interrupted(method):
    p, optimizer = start(method, normalised)
    p.step(optimizer)
    for failing in itertools.count(1):
        before, storage = snapshot(p.model), [w.data_ptr() for w in p.model.parameters()]
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
            assert_equal(snapshot(p.model), before)
            assert [w.data_ptr() for w in p.model.parameters()] == storage
            assert all(w.grad is None for w in p.model.parameters())
            assert torch.equal(optimizer.generator.get_state(), generator)
            assert torch.equal(torch.get_rng_state(), random)
        else:
            break
    assert failing > 1  # it did raise at least once


@every_row
def test_an_overflow_in_either_pass_skips_the_step_and_nothing_is_remembered_of_it(method):
    for at, form in itertools.product((1, 2), ("trainer", "step")):
        p, optimizer = start(method, dtype=torch.float32, **({"k": 2} if "k" in method.options() else {}))
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
        p, optimizer = start(EVERY_ROW[name], lambda dtype: nn.Sequential(*layers), batch=16, dtype=torch.float32)
        for _ in range(4):
            assert p.step(optimizer).shape == ()


@every_method
def test_a_first_gradient_without_direction_never_reaches_the_weights_nor_later_steps(method):
    for value in (0.0, float("inf"), float("nan")):
        p, optimizer = start(method)
        for _ in range(5):  # LookSAM perturbs after five
            p.step(optimizer)
        calls, seen, before = itertools.count(), [], p.weights
        handle = p.model.register_forward_pre_hook(lambda *_, seen=seen, p=p: seen.append(p.weights))
        p.step(
            optimizer,
            lambda x, y, p=p, calls=calls, value=value: p.loss_of(x, y) * (value if next(calls) == 0 else 1.0),
        )
        handle.remove()
        assert len(seen) > 1
        if "decay" not in method.options() or value != 0:  # F-SAM's direction leaves a mean out, and is not zero
            for weights in seen:  # every later pass too: it would see theta + eps
                assert_same(weights, before)
        assert all(torch.isfinite(w).all() for w in p.weights)  # the second gradient was healthy
        for kept in (getattr(optimizer, name) for name in optimizer.remembered):
            tensors = kept.tensors if isinstance(kept, Gradients) else [torch.as_tensor(kept)]
            assert all(torch.isfinite(t).all() for t in tensors)


# Later steps ----------------------------------------------------------------------------------------------------------


@every_row
def test_a_resumed_run_continues_bit_for_bit(method):
    base = "adamw"  # its state has numbers and tensors
    p, optimizer = start(method, normalised, base)
    for _ in range(7):
        p.step(optimizer)
    file = io.BytesIO()
    saved = {"model": p.model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    torch.save(saved, file)
    straight = [float(p.step(optimizer)) for _ in range(9)]

    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    q = problem(normalised, seed=1)
    q.x, q.y = p.x, p.y
    resumed = method(BASES[base](q.model.parameters()), q.model, seed=99)
    q.model.load_state_dict(loaded["model"])
    resumed.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["random"])
    assert [float(q.step(resumed)) for _ in range(9)] == straight
    assert_equal(p.model.state_dict(), q.model.state_dict())


@every_row
def test_a_deep_copy_and_a_pickled_one_train_on_by_themselves_and_alike(method):
    p, optimizer = start(method)
    for _ in range(3):
        p.step(optimizer)
    copies = copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
    expected = [float(p.step(optimizer)) for _ in range(6)]
    for twin in copies:
        q = copy.copy(p)
        q.model = twin.model
        assert [float(q.step(twin)) for _ in range(6)] == expected
        assert_equal(p.model.state_dict(), q.model.state_dict())


@every_row
def test_a_gradient_that_nobody_stepped_by_is_forgotten(method):
    (p, optimizer), (q, twin) = start(method), start(method)
    state = twin.generator.get_state()
    optimizer.accumulate(p.loss_of, p.x[:3], p.y[:3])
    optimizer.gradient()
    optimizer.generator.set_state(state)  # draws alone go on
    for _ in range(3):
        assert p.step(optimizer) == q.step(twin)
    assert_same(p.weights, q.weights)


def after_five_steps(method, torchs, **seed):
    p = problem()
    torch.manual_seed(torchs)
    base = BASES["sgd"](p.model.parameters())
    keys = set(base.param_groups[0])
    optimizer = method(base, p.model, **seed)
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
def test_draws_follow_the_seed_or_torchs_own_and_leave_the_global_stream_and_the_base_alone(method):
    one = after_five_steps(method, torchs=7)
    assert_same(one, after_five_steps(method, torchs=3, seed=7))
    other = after_five_steps(method, torchs=7, seed=8)
    draws = {"beta", "share", "gamma"} & set(method.effective()) and method.effective().get("ranking") != "exact"
    if draws or method.effective().get("beta", 1) < 1:
        assert not all(map(torch.equal, one, other))


# Where the wrapper alone decides --------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
def test_any_base_steps_as_it_would_alone_by_the_gradient_left_in_grad(base):
    p, optimizer = start(ESAM, base=base)
    twin = copy.deepcopy(p.model)
    alone = BASES[base](twin.parameters())
    for _ in range(3):
        p.step(optimizer)
        for w, t in zip(p.model.parameters(), twin.parameters(), strict=True):
            t.grad = w.grad.clone()
        alone.step()
        assert_equal(p.model.state_dict(), twin.state_dict())


def test_it_is_a_torch_optimizer_on_the_bases_own_groups():
    _, optimizer = start(ESAM)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is optimizer.base.param_groups
    assert optimizer.state is optimizer.base.state
    assert optimizer.defaults is optimizer.base.defaults
    optimizer.base.load_state_dict(optimizer.base.state_dict())  # torch puts new lists in place
    assert optimizer.param_groups is optimizer.base.param_groups


def test_requires_grad_and_modes_stay_as_the_user_left_them():
    p, optimizer = start(ESAM, normalised)
    p.model[0].weight.requires_grad_(False)
    p.model[1].eval()
    frozen, statistics = p.model[0].weight.clone(), p.model[1].running_mean.clone()
    for _ in range(6):
        p.step(optimizer)
    assert torch.equal(p.model[0].weight, frozen) and torch.equal(p.model[1].running_mean, statistics)
    assert [q.requires_grad for q in p.model.parameters()].count(False) == 1
    assert not p.model[1].training and p.model[5].training


def test_a_caller_without_gradients_gets_the_same_step():
    """Some trainers call step under no_grad, as torch's own optimizers allow."""
    (p, optimizer), (q, twin) = start(ESAM), start(ESAM)
    for _ in range(2):
        expected = p.step(optimizer)
        with torch.no_grad():
            assert q.step(twin) == expected
    assert_same(p.weights, q.weights)


def test_a_parameter_without_a_gradient_or_with_one_in_one_pass_only_is_left_alone():
    for method in EVERY_METHOD.values():
        p, optimizer = start(method)
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
    optimizer = ESAM(torch.optim.SGD(q.model.parameters(), lr=0.7), q.model, rho=0.0)
    optimizer.load_state_dict(copy.deepcopy(base.state_dict()))  # torch shares tensors
    for _ in range(3):
        step_alone()
        q.step(optimizer)
    assert_same(p.weights, q.weights)
