"""What every method in the registry promises. A new method gets these tests by its row."""

import copy
import io
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from conftest import EVERY_METHOD, EVERY_ROW, mlp, normalised, problem
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


@every_row
def test_the_loss_falls(method):
    """A smoke test."""
    p, optimizer = start(method)
    losses = [float(p.step(optimizer)) for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]


@every_method
def test_step_returns_the_mean_loss_at_theta_detached(method):
    p, optimizer = start(method)
    expected = p.closure(slice(None)).mean()
    loss = p.step(optimizer)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-15)
    assert not loss.requires_grad


def test_it_is_a_torch_optimizer_on_the_bases_own_groups():
    _, optimizer = start(ESAM)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is optimizer.base.param_groups
    assert optimizer.state is optimizer.base.state
    assert optimizer.defaults is optimizer.base.defaults
    optimizer.base.load_state_dict(optimizer.base.state_dict())  # torch puts new lists in place
    assert optimizer.param_groups is optimizer.base.param_groups


@every_row
def test_everything_returns_bit_for_bit_whichever_call_of_the_loss_is_interrupted(method):
    p, optimizer = start(method, normalised)
    p.step(optimizer)
    calls = 0
    for failing in itertools.count(1):
        before, storage = snapshot(p.model), [w.data_ptr() for w in p.model.parameters()]
        generator = optimizer.generator.get_state()
        calls = 0

        def loss_of(x, y, failing=failing):
            nonlocal calls
            calls += 1
            losses = p.loss_of(x, y)
            if calls == failing:
                raise KeyboardInterrupt("on purpose")
            return losses

        random = torch.get_rng_state()
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
    p.step(optimizer)


@every_row
def test_requires_grad_and_modes_stay_as_the_user_left_them(method):
    p, optimizer = start(method, normalised)
    p.model[0].weight.requires_grad_(False)
    p.model[1].eval()
    frozen = p.model[0].weight.clone()
    statistics = p.model[1].running_mean.clone()
    for _ in range(6):
        p.step(optimizer)
    assert torch.equal(p.model[0].weight, frozen)
    assert torch.equal(p.model[1].running_mean, statistics)
    assert [q.requires_grad for q in p.model.parameters()].count(False) == 1
    assert not p.model[1].training
    assert p.model[5].training


@every_method
def test_batchnorm_moves_once_a_step_by_the_first_pass(method):
    p, optimizer = start(method, normalised)
    twin = problem(normalised)
    torch.manual_seed(1)
    p.step(optimizer)
    torch.manual_seed(1)
    twin.loss_of(twin.x, twin.y)
    for a, b in zip(p.model.buffers(), twin.model.buffers(), strict=True):
        assert torch.equal(a, b)


@every_row
def test_a_caller_without_gradients_gets_the_same_step(method):
    """Some trainers call step under no_grad, as torch's own optimizers allow."""
    p, optimizer = start(method)
    q, twin = start(method)
    for _ in range(2):
        expected = p.step(optimizer)
        with torch.no_grad():
            assert q.step(twin) == expected
    assert_equal(p.model.state_dict(), q.model.state_dict())


@every_method
def test_a_parameter_without_a_gradient_is_left_alone(method):
    p, optimizer = start(method)
    unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [unused]})
    for _ in range(6):
        p.step(optimizer)
    assert torch.equal(unused, torch.ones(3, dtype=torch.float64))


@every_method
def test_a_parameter_used_in_one_pass_only_returns_too(method):
    p, optimizer = start(method)
    extra = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [extra], "lr": 0.0, "weight_decay": 0.0})
    for parity in (0, 1):
        calls = itertools.count()

        def loss_of(x, y, calls=calls, parity=parity):
            losses = p.loss_of(x, y)
            return losses + extra.sum() if next(calls) % 2 == parity else losses

        p.step(optimizer, loss_of)
        assert torch.equal(extra, torch.ones(3, dtype=torch.float64))


@every_method
def test_a_group_with_perturb_false_trains_unperturbed(method):
    p = problem()
    head = [*p.model[4].parameters()]
    body = [q for q in p.model.parameters() if all(q is not h for h in head)]
    base = torch.optim.SGD([{"params": body}, {"params": head, "perturb": False}], lr=0.1)
    optimizer = method(base, p.model)
    before = [h.detach().clone() for h in head]
    seen = []

    def loss_of(x, y):
        seen.append([h.detach().clone() for h in head])
        return p.loss_of(x, y)

    p.step(optimizer, loss_of)
    assert len(seen) > 1
    assert all(torch.equal(a, b) for at in seen for a, b in zip(at, before, strict=True))
    assert not torch.equal(head[0], before[0])  # yet it was trained


@every_method
def test_a_groups_own_rho_scales_its_perturbation(method):
    moves = []
    for rho in (0.1, 0.2):
        p = problem()
        first, *rest = p.model.parameters()
        base = torch.optim.SGD([{"params": [first], "sam_rho": rho}, {"params": rest}], lr=0.1)
        optimizer = method(base, p.model, rho=0.1)
        theta, seen = first.detach().clone(), []
        handle = p.model.register_forward_pre_hook(lambda *_, s=seen, f=first: s.append(f.detach().clone()))
        p.step(optimizer)
        handle.remove()
        moves.append(seen[-1] - theta)
    assert torch.allclose(moves[1], 2 * moves[0], rtol=1e-9)
    assert moves[0].abs().max() > 0


@pytest.mark.parametrize("steps", [0, 7])
@every_row
def test_a_resumed_run_continues_bit_for_bit(method, steps):
    base = "adamw"  # its state has numbers and tensors
    p, optimizer = start(method, normalised, base)
    for _ in range(steps):
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


@every_method
def test_the_bases_own_checkpoint_is_continued_as_the_base_would(method):
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
    optimizer = method(torch.optim.SGD(q.model.parameters(), lr=0.7), q.model, rho=0.0)
    optimizer.load_state_dict(copy.deepcopy(base.state_dict()))  # torch shares tensors
    for _ in range(3):
        step_alone()
        q.step(optimizer)
    assert_equal(p.model.state_dict(), q.model.state_dict())


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
@every_method
def test_a_first_gradient_without_direction_never_reaches_the_weights(method, value):
    p, optimizer = start(method)
    calls = itertools.count()

    def loss_of(x, y):
        losses = p.loss_of(x, y)
        return losses * value if next(calls) == 0 else losses

    seen = []
    handle = p.model.register_forward_pre_hook(lambda *_: seen.append(p.weights))
    before = p.weights
    p.step(optimizer, loss_of)
    handle.remove()
    assert len(seen) > 1
    for weights in seen:  # every later pass too: it would see theta + eps
        assert all(torch.equal(a, b) for a, b in zip(weights, before, strict=True))
    assert all(torch.isfinite(w).all() for w in p.weights)  # the second gradient was healthy


@pytest.mark.parametrize("steps", [3, 5])  # LookSAM perturbs after five
@every_method
def test_one_broken_sample_in_the_first_pass_does_not_outlive_the_step(method, steps):
    p, optimizer = start(method)
    for _ in range(steps):
        p.step(optimizer)
    calls = itertools.count()
    p.step(optimizer, lambda x, y: p.loss_of(x, y) * (float("nan") if next(calls) == 0 else 1.0))
    for value in (getattr(optimizer, name) for name in optimizer.remembered):
        tensors = value.tensors if isinstance(value, Gradients) else [torch.as_tensor(value)]
        assert all(torch.isfinite(t).all() for t in tensors)


@every_row
def test_the_mask_generator_leaves_the_global_stream_alone(method):
    p, optimizer = start(method)
    state = torch.get_rng_state()
    for _ in range(3):
        p.step(optimizer)
    assert torch.equal(torch.get_rng_state(), state)


def after_five_steps(method, torchs, **seed):
    p = problem()
    torch.manual_seed(torchs)
    optimizer = method(BASES["sgd"](p.model.parameters()), p.model, **seed)
    torch.manual_seed(99)  # what comes later has no say
    for _ in range(5):
        p.step(optimizer)
    return snapshot(p.model)


@every_row
def test_without_a_seed_torchs_own_decides(method):
    assert_equal(after_five_steps(method, torchs=7), after_five_steps(method, torchs=3, seed=7))


@pytest.mark.parametrize("name", ["base-part", "esam", "esam-swp", "esam-random"])
def test_another_seed_draws_otherwise(name):
    one, other = (after_five_steps(EVERY_ROW[name], torchs=0, seed=seed) for seed in (7, 8))
    assert not torch.equal(one["0.weight"], other["0.weight"])


@every_row
def test_the_bases_groups_and_state_are_left_as_they_are_so_that_it_can_be_wrapped_again(method):
    p = problem()
    base = BASES["sgd"](p.model.parameters())
    keys = set(base.param_groups[0])
    for _ in range(2):
        optimizer = method(base, p.model)
        p.step(optimizer)
        optimizer.state_dict()
        assert set(base.param_groups[0]) == keys
        assert {key for state in base.state.values() for key in state} == {"momentum_buffer"}


@pytest.mark.parametrize("name", ["base", "sam", "asam", "looksam", "fsam", "gsam", "esam-sds", "slicesam", "msam"])
def test_nothing_is_read_back_from_the_device(name):
    """FakeTensorMode refuses any value that the host asks for; drawing masks (SWP) and AE-SAM's decision ask."""
    with FakeTensorMode():
        layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
        p, optimizer = start(EVERY_ROW[name], lambda dtype: nn.Sequential(*layers), batch=16, dtype=torch.float32)
        for _ in range(4):
            assert p.step(optimizer).shape == ()


@every_row
def test_a_loop_over_passes_takes_the_step_of_a_loss_function_bit_for_bit(method):
    (p, optimizer), (q, in_turns) = start(method, normalised, batch=16), start(method, normalised, batch=16)
    for number in range(7):
        torch.manual_seed(number)
        p.step(optimizer)
        torch.manual_seed(number)
        for x, y in in_turns.passes(q.x, q.y):
            in_turns.backward(F.cross_entropy(q.model(x), y, reduction="none"))
        in_turns.step()
    assert_equal(p.model.state_dict(), q.model.state_dict())


@every_row
def test_phases_and_closures_take_the_step_of_a_loss_function_bit_for_bit(method):
    runs = [start(method, normalised, batch=16) for _ in range(4)]
    for number in range(7):
        for how, (p, optimizer) in enumerate(runs):
            torch.manual_seed(number)
            if how == 0:
                p.step(optimizer)
            elif how == 1:
                optimizer.accumulate(p.loss_of, p.x, p.y)
                optimizer.gradient()
                optimizer.step()
            else:
                optimizer.step(p.closure if how == 2 else [p.closure], batch_size=16 if how == 2 else [16])
    for p, _ in runs[1:]:
        assert_equal(runs[0][0].model.state_dict(), p.model.state_dict())


@every_row
def test_what_else_the_loss_function_returns_comes_from_the_first_pass_in_the_order_of_the_batch(method):
    p, optimizer = start(method)
    for _ in range(2):
        with torch.no_grad():
            expected = p.model(p.x)
        outputs = []

        def loss_of(x, y, outputs=outputs):
            logits = p.model(x)
            outputs.append(x)
            return F.cross_entropy(logits, y, reduction="none"), logits, {"x": x}

        _, logits, extra = p.step(optimizer, loss_of)
        assert not logits.requires_grad
        rows = slice(None) if len(logits) == len(p.x) else [(p.x == row).all(1).nonzero().item() for row in extra["x"]]
        if not optimizer.steps > 1 or "Momentum" not in type(optimizer).__name__:  # which visits theta + eps alone
            torch.testing.assert_close(logits, expected[rows], rtol=0, atol=1e-12)
        torch.testing.assert_close(extra["x"], p.x[rows], rtol=0, atol=0)
