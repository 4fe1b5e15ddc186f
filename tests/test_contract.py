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
        optimizer.step(p.closure)
        for w, t in zip(p.model.parameters(), twin.parameters(), strict=True):
            t.grad = w.grad.clone()
        alone.step()
        assert_equal(p.model.state_dict(), twin.state_dict())


@every_row
def test_the_loss_falls(method):
    """A smoke test."""
    p, optimizer = start(method)
    losses = [float(optimizer.step(p.closure)) for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]


@every_method
def test_step_returns_the_mean_loss_at_theta_detached(method):
    p, optimizer = start(method)
    expected = p.closure(slice(None)).mean()
    loss = optimizer.step(p.closure)
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


@pytest.mark.parametrize("on", ["wrapper", "base"])
def test_a_scheduler_acts_on_either_optimizer_and_a_scheduled_one_can_be_copied(on):
    p, optimizer = start(ESAM)
    q, twin = start(ESAM)
    target = optimizer if on == "wrapper" else optimizer.base
    scheduler = torch.optim.lr_scheduler.StepLR(target, step_size=1, gamma=0.1)
    for rate in (0.05, 0.05 * 0.1):
        twin.param_groups[0]["lr"] = rate
        assert optimizer.step(p.closure) == twin.step(q.closure)
        scheduler.step()
    assert_equal(p.model.state_dict(), q.model.state_dict())
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0005)
    copied = copy.copy(p)
    other = copy.deepcopy(optimizer)
    copied.model = other.model
    assert optimizer.step(p.closure) == other.step(copied.closure)
    assert_equal(p.model.state_dict(), copied.model.state_dict())


@every_row
def test_weights_return_bit_for_bit_whichever_call_of_the_closure_is_interrupted(method):
    p, optimizer = start(method, normalised)
    optimizer.step(p.closure)
    calls = 0
    for failing in itertools.count(1):
        before, storage = snapshot(p.model), [w.data_ptr() for w in p.model.parameters()]
        generator = optimizer.generator.get_state()
        calls = 0

        def closure(keep, failing=failing):
            nonlocal calls
            calls += 1
            losses = p.closure(keep)
            if calls == failing:
                raise KeyboardInterrupt("on purpose")
            return losses

        try:
            optimizer.step(closure)
        except KeyboardInterrupt:
            assert_equal(snapshot(p.model), before)
            assert [w.data_ptr() for w in p.model.parameters()] == storage
            assert all(w.grad is None for w in p.model.parameters())
            assert torch.equal(optimizer.generator.get_state(), generator)
        else:
            break
    assert failing > 1  # it did raise at least once
    optimizer.step(p.closure)


@pytest.mark.parametrize("failing", [1, 2])
@every_method
def test_a_failed_step_leaves_no_trace_in_the_next_one(method, failing):
    p, optimizer = start(method)
    q, twin = start(method)
    for _ in range(5):  # LookSAM's sixth step perturbs
        assert optimizer.step(p.closure) == twin.step(q.closure)
    calls = itertools.count(1)

    def broken(keep):
        if next(calls) == failing:
            raise RuntimeError("on purpose")
        return p.closure(keep)

    with pytest.raises(RuntimeError, match="on purpose"):
        optimizer.step(broken)
    for _ in range(6):
        assert optimizer.step(p.closure) == twin.step(q.closure)
    assert_equal(p.model.state_dict(), q.model.state_dict())


@every_method
def test_an_error_after_the_method_has_remembered_something_takes_that_back_too(method, monkeypatch):
    p, optimizer = start(method)
    optimizer.step(p.closure)
    saved = copy.deepcopy(optimizer.state_dict())
    combine = optimizer.combine

    def combine_and_fail(*args):
        combine(*args)
        raise RuntimeError("on purpose")

    for parameter in p.model.parameters():  # other gradients than in the step before
        nn.init.normal_(parameter)
    monkeypatch.setattr(optimizer, "combine", combine_and_fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        optimizer.step(p.closure)
    now = optimizer.state_dict()
    for one, other in (
        *zip(now["param_groups"], saved["param_groups"], strict=True),
        *((now["state"][n], saved["state"][n]) for n in saved["state"]),
    ):
        for key in other:
            torch.testing.assert_close(one[key], other[key], rtol=0, atol=0)
    assert all(q.grad is None for q in p.model.parameters())


@every_row
def test_requires_grad_and_modes_stay_as_the_user_left_them(method):
    p, optimizer = start(method, normalised)
    p.model[0].weight.requires_grad_(False)
    p.model[1].eval()
    frozen = p.model[0].weight.clone()
    statistics = p.model[1].running_mean.clone()
    for _ in range(6):
        optimizer.step(p.closure)
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
    optimizer.step(p.closure)
    torch.manual_seed(1)
    twin.closure(slice(None))
    for a, b in zip(p.model.buffers(), twin.model.buffers(), strict=True):
        assert torch.equal(a, b)


@every_row
def test_a_caller_without_gradients_gets_the_same_step(method):
    """Some trainers call step under no_grad, as torch's own optimizers allow."""
    p, optimizer = start(method)
    q, twin = start(method)
    for _ in range(2):
        expected = optimizer.step(p.closure)
        with torch.no_grad():
            assert twin.step(q.closure) == expected
    assert_equal(p.model.state_dict(), q.model.state_dict())


def test_the_size_of_a_batch_that_nobody_told_is_found_by_one_forward_without_a_trace():
    p, optimizer = start(EVERY_METHOD["sam"], normalised, m=12)
    q, told = start(EVERY_METHOD["sam"], normalised, m=12)
    grad_modes = []
    p.model.register_forward_pre_hook(lambda *_: grad_modes.append(torch.is_grad_enabled()))
    torch.manual_seed(1)
    loss = optimizer.step(p.closure)
    assert grad_modes == [False, True, True]
    torch.manual_seed(1)
    assert told.step(q.closure, batch_size=12) == loss
    assert_equal(p.model.state_dict(), q.model.state_dict())


@every_method
def test_a_parameter_without_a_gradient_is_left_alone(method):
    p, optimizer = start(method)
    unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [unused]})
    for _ in range(6):
        optimizer.step(p.closure)
    assert torch.equal(unused, torch.ones(3, dtype=torch.float64))


@every_method
def test_a_parameter_used_in_one_pass_only_returns_too(method):
    p, optimizer = start(method)
    extra = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [extra], "lr": 0.0, "weight_decay": 0.0})
    for parity in (0, 1):
        calls = itertools.count()

        def closure(keep, calls=calls, parity=parity):
            losses = p.closure(keep)
            return losses + extra.sum() if next(calls) % 2 == parity else losses

        optimizer.step(closure)
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

    def closure(keep):
        seen.append([h.detach().clone() for h in head])
        return p.closure(keep)

    optimizer.step(closure)
    assert len(seen) > 1
    assert all(torch.equal(a, b) for at in seen for a, b in zip(at, before, strict=True))
    assert not torch.equal(head[0], before[0])  # yet it was trained


@every_method
def test_a_groups_own_rho_scales_its_perturbation(method):
    moves = []
    for rho in (0.1, 0.2):
        p = problem()
        first, *rest = p.model.parameters()
        base = torch.optim.SGD([{"params": [first], "rho": rho}, {"params": rest}], lr=0.1)
        optimizer = method(base, p.model, rho=0.1)
        theta, seen = first.detach().clone(), []
        optimizer.step(
            lambda keep, p=p, seen=seen, first=first: (seen.append(first.detach().clone()), p.closure(keep))[1]
        )
        moves.append(seen[-1] - theta)
    assert torch.allclose(moves[1], 2 * moves[0], rtol=1e-9)
    assert moves[0].abs().max() > 0


@every_method
def test_micro_batches_equal_the_one_big_batch(method):
    p, optimizer = start(method)
    q, accumulating = start(method)

    def part(a, b):
        return lambda keep: F.cross_entropy(q.model(q.x[a:b][keep]), q.y[a:b][keep], reduction="none")

    for _ in range(12):
        whole = optimizer.step(p.closure)
        pieces = accumulating.step([part(0, 5), part(5, 7), part(7, 12)])
        assert whole.item() == pytest.approx(pieces.item(), abs=1e-12)
    for a, b in zip(p.weights, q.weights, strict=True):
        assert (a - b).abs().max() < 1e-12


@pytest.mark.parametrize("steps", [0, 7])
@every_row
def test_a_resumed_run_continues_bit_for_bit(method, steps):
    base = "adamw"  # its state has numbers and tensors
    p, optimizer = start(method, normalised, base)
    for _ in range(steps):
        optimizer.step(p.closure)
    file = io.BytesIO()
    saved = {"model": p.model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    torch.save(saved, file)
    straight = [float(optimizer.step(p.closure)) for _ in range(9)]

    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    q = problem(normalised, seed=1)
    q.x, q.y = p.x, p.y
    resumed = method(BASES[base](q.model.parameters()), q.model, seed=99)
    q.model.load_state_dict(loaded["model"])
    resumed.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["random"])
    assert [float(resumed.step(q.closure)) for _ in range(9)] == straight
    assert_equal(p.model.state_dict(), q.model.state_dict())


@every_row
def test_a_deep_copy_and_a_pickled_one_train_on_by_themselves_and_alike(method):
    p, optimizer = start(method)
    for _ in range(3):
        optimizer.step(p.closure)
    copies = copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
    expected = [float(optimizer.step(p.closure)) for _ in range(6)]
    for twin in copies:
        q = copy.copy(p)
        q.model = twin.model
        assert [float(twin.step(q.closure)) for _ in range(6)] == expected
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
        optimizer.step(q.closure)
    assert_equal(p.model.state_dict(), q.model.state_dict())


@pytest.mark.parametrize("on", ["wrapper", "base"])
def test_a_clipping_hook_clips_the_gradient_that_the_base_uses(on):
    p, optimizer = start(ESAM)
    target = optimizer if on == "wrapper" else optimizer.base
    seen = []

    def clip(opt, args, kwargs):
        weights = [q for g in opt.param_groups for q in g["params"]]
        seen.append(float(nn.utils.clip_grad_norm_(weights, 1e-3)))

    target.register_step_pre_hook(clip)
    theta = p.weights
    optimizer.step(p.closure)
    assert len(seen) == 1
    assert seen[0] > 1e-3
    buffers = [
        optimizer.state[q]["momentum_buffer"] - 1e-3 * w for q, w in zip(p.model.parameters(), theta, strict=True)
    ]
    norm = torch.cat([b.flatten() for b in buffers]).norm()  # the first step's buffer is the gradient and the decay
    assert norm == pytest.approx(1e-3 * seen[0] / (seen[0] + 1e-6), rel=1e-9)


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
@every_method
def test_a_first_gradient_without_direction_never_reaches_the_weights(method, value):
    p, optimizer = start(method)
    calls = itertools.count()

    def closure(keep):
        losses = p.closure(keep)
        return losses * value if next(calls) == 0 else losses

    seen = []
    handle = p.model.register_forward_pre_hook(lambda *_: seen.append(p.weights))
    before = p.weights
    optimizer.step(closure)
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
        optimizer.step(p.closure)
    calls = itertools.count()
    optimizer.step(lambda keep: p.closure(keep) * (float("nan") if next(calls) == 0 else 1.0))
    assert all(torch.isfinite(torch.as_tensor(v)).all() for v in _numbers(optimizer.memory()))


def _numbers(memory):
    for value in memory.values():
        yield from value.values() if isinstance(value, dict) else [value]


@every_row
def test_the_mask_generator_leaves_the_global_stream_alone(method):
    p, optimizer = start(method)
    state = torch.get_rng_state()
    for _ in range(3):
        optimizer.step(p.closure)
    assert torch.equal(torch.get_rng_state(), state)


def after_five_steps(method, torchs, **seed):
    p = problem()
    torch.manual_seed(torchs)
    optimizer = method(BASES["sgd"](p.model.parameters()), p.model, **seed)
    torch.manual_seed(99)  # what comes later has no say
    for _ in range(5):
        optimizer.step(p.closure)
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
        optimizer.step(p.closure)
        optimizer.state_dict()
        assert set(base.param_groups[0]) == keys
        assert {key for state in base.state.values() for key in state} == {"momentum_buffer"}
