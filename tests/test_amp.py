"""Low precision: does autocast hide the perturbation, does the scaler cancel, does an overflow leave a trace?"""

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import EVERY_METHOD, mlp, problem
from torch import nn

from esam import SAM
from esam.optim import Gradients

every_method = pytest.mark.parametrize("name", EVERY_METHOD)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def start(name, dtype=torch.float32, base=sgd, **settings):
    p = problem(mlp, dtype=dtype)
    return p, EVERY_METHOD[name](base(p.model.parameters()), p.model, seed=3, **settings)


def bf16():
    return torch.autocast("cpu", torch.bfloat16)


def assert_equal(a, b):
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one, other)


def split_in_two(p, closure):
    """Return two micro-batches of the problem's batch of twelve."""
    of_all = torch.arange(12)
    return [lambda keep, part=part: closure(part[keep]) for part in (of_all[:5], of_all[5:])]


# Autocast -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["whole", "micro-batches"])
@every_method
def test_autocast_around_the_whole_step_equals_autocast_inside_the_closure(name, how):
    p, inside = start(name, rho=0.5)
    q, around = start(name, rho=0.5)

    def cast(keep):
        with bf16():
            return p.closure(keep)

    for _ in range(7):  # LookSAM perturbs in the first and in the sixth
        inside.step(split_in_two(p, cast) if how == "micro-batches" else cast)
        with bf16():
            around.step(split_in_two(q, q.closure) if how == "micro-batches" else q.closure)
    assert_equal(p.weights, q.weights)


@pytest.mark.parametrize("rho", [0.0, 0.5])
@every_method
def test_one_autocast_block_around_many_steps_never_trains_on_last_steps_weights(name, rho):
    p, inside = start(name, rho=rho)
    q, around = start(name, rho=rho)

    def cast(keep):
        with bf16():
            return p.closure(keep)

    apart = [float(inside.step(cast)) for _ in range(4)]
    with bf16():
        together = [float(around.step(q.closure)) for _ in range(4)]
    assert together == apart


def test_the_perturbation_is_felt_under_autocast():
    """So that the tests above compare something: SAM's weights are not those of its base."""
    p, sam = start("sam", rho=0.5)
    q, plain = start("sam", rho=0.0)
    with bf16():
        sam.step(p.closure)
    with bf16():
        plain.step(q.closure)
    assert not torch.equal(p.weights[0], q.weights[0])


@pytest.mark.parametrize("name", ["sam", "asam", "looksam", "esam-swp"])  # where rises are close, SDS keeps others
def test_a_gradient_in_bf16_is_the_float32_one_to_its_eight_bits(name):
    p, exact = start(name)
    q, low = start(name)
    exact.step(p.closure)
    with bf16():
        low.step(q.closure)
    one, other = (torch.cat([w.grad.flatten() for w in r.model.parameters()]) for r in (p, q))
    # 2^-9 a rounding, some six of them one after another in each of two passes
    assert float((one - other).norm() / one.norm()) < 12 * 2**-8


# GradScaler -----------------------------------------------------------------------------------------------------------


def cpu_scaler(scale=1024.0, **settings):
    return torch.amp.GradScaler("cpu", init_scale=scale, **settings)


@pytest.mark.parametrize("how", ["whole", "micro-batches"])
@every_method
def test_a_scale_of_a_power_of_two_cancels_bit_for_bit(name, how):
    p, plain = start(name)
    q, scaled = start(name)
    scaler = cpu_scaler(2.0**14)
    for _ in range(7):
        a = plain.step(split_in_two(p, p.closure) if how == "micro-batches" else p.closure)
        b = scaled.step(split_in_two(q, q.closure) if how == "micro-batches" else q.closure, scaler=scaler)
        scaler.update()
        assert a == b
    assert_equal(p.weights, q.weights)
    assert scaler.get_scale() == 2.0**14


def overflowing(p, at):
    """Return the problem's closure with infinite losses in the pass ``at``: the first, or the second."""
    calls = []

    def closure(keep):
        calls.append(keep)
        losses = p.closure(keep)
        second = len(calls) > 1 and torch.is_grad_enabled()
        return losses * torch.inf if (len(calls) == 1 if at == "first" else second) else losses

    return closure


BASES = {
    "sgd": sgd,
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    "fused adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, fused=True),
}


@pytest.mark.parametrize("at", ["first", "second"])
@pytest.mark.parametrize(
    ("name", "base"), [*((name, "sgd") for name in EVERY_METHOD), ("sam", "adam"), ("sam", "fused adam")]
)
def test_an_overflow_in_either_pass_skips_the_step_and_halves_the_scale(name, at, base):
    p, optimizer = start(name, base=BASES[base])
    scaler = cpu_scaler()
    for _ in range(5):  # LookSAM's sixth step perturbs
        optimizer.step(p.closure, scaler=scaler)
        scaler.update()
    weights, state = p.weights, copy.deepcopy(optimizer.base.state_dict()["state"])

    optimizer.step(overflowing(p, at), scaler=scaler)
    scaler.update()

    assert_equal(weights, p.weights)
    for n, slots in optimizer.base.state_dict()["state"].items():
        for key, value in slots.items():
            assert torch.equal(value, state[n][key]), key
    assert scaler.get_scale() == 512.0
    assert optimizer.step(p.closure, scaler=scaler).isfinite()
    assert all(w.isfinite().all() for w in p.weights)
    assert not torch.equal(weights[0], p.weights[0])


@pytest.mark.parametrize("call", range(1, 7))
def test_an_overflow_in_any_group_of_m_samples_skips_the_whole_step(call):
    p, optimizer = start("sam", m=4)
    weights, calls = p.weights, []

    def closure(keep):
        calls.extend([keep] * torch.is_grad_enabled())  # not where the whole is compared with its parts
        losses = p.closure(keep)
        return losses * torch.inf if len(calls) == call and torch.is_grad_enabled() else losses

    scaler = cpu_scaler()
    optimizer.step(closure, scaler=scaler, batch_size=12)
    scaler.update()
    assert_equal(weights, p.weights)
    assert scaler.get_scale() == 512.0


@pytest.mark.parametrize("at", ["first", "second"])
def test_looksam_perturbs_again_after_a_skipped_step_that_should_have_perturbed(at):
    p, optimizer = start("looksam", k=2)
    scaler = cpu_scaler()
    for closure in (p.closure, p.closure, overflowing(p, at)):
        optimizer.step(closure, scaler=scaler)
        scaler.update()
    p.calls.clear()
    optimizer.step(p.closure, scaler=scaler)
    assert len(p.calls) == 2


class Sum(nn.Module):
    def __init__(self, values, dtype):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=dtype))

    def forward(self, x):
        return self.w.sum() + x


def sum_of(values, dtype, rho):
    model = Sum(values, dtype)
    x = torch.zeros(4, dtype=dtype)
    return SAM(torch.optim.SGD(model.parameters(), lr=1e-6), model, rho=rho), lambda keep: model(x[keep])


def test_an_overflow_is_reported_though_the_gradients_share_their_memory():
    """A sum's gradient is one number seen from every place; the scaler writes in place."""
    optimizer, closure = sum_of([1.0, 2.0], torch.float32, 0.05)
    before = optimizer.param_groups[0]["params"][0].detach().clone()
    scaler = cpu_scaler(1.0)
    optimizer.step(lambda keep: closure(keep) * torch.inf, scaler=scaler)
    scaler.update()
    assert scaler.get_scale() == 0.5
    assert torch.equal(before, optimizer.param_groups[0]["params"][0])


@every_method
def test_a_disabled_scaler_is_none_at_all(name):
    p, without = start(name)
    q, disabled = start(name)
    for step in range(3):
        broken = step == 1
        without.step(overflowing(p, "first") if broken else p.closure)
        disabled.step(
            overflowing(q, "first") if broken else q.closure, scaler=torch.amp.GradScaler("cpu", enabled=False)
        )
    for a, b in zip(p.weights, q.weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("base", ["sgd", "fused adam"])  # to a fused base the scaler hands scaled gradients
def test_a_clipping_hook_sees_unscaled_gradients(base):
    norms = {}
    for scaler in (None, cpu_scaler(2.0**10)):
        p, optimizer = start("esam", base=BASES[base])
        seen = norms.setdefault(scaler is None, [])

        def clip(_optimizer, _args, _kwargs, p=p, seen=seen):
            seen.append(float(nn.utils.clip_grad_norm_(p.model.parameters(), 0.01)))

        optimizer.register_step_pre_hook(clip)
        for _ in range(3):
            optimizer.step(p.closure, scaler=scaler)
            if scaler is not None:
                scaler.update()
    assert norms[True] == norms[False]


@every_method
def test_a_gradient_that_fp16_would_flush_to_zero_trains_with_the_scaler(name):
    """Losses of a hundred-millionth: fp16 gradients below 6e-8 vanish. Scaled by 65,536 they come through."""

    def tiny(p):
        def closure(keep):
            with torch.autocast("cpu", torch.float16):
                outputs = p.model(p.x[keep])
            return F.cross_entropy(outputs.float(), p.y[keep], reduction="none") * 1e-8

        return closure

    p, unscaled = start(name)
    unscaled.step(tiny(p))
    assert float(p.model[0].weight.grad.abs().max()) == 0
    p, scaled = start(name)
    scaled.step(tiny(p), scaler=cpu_scaler(2.0**16))
    q, exact = start(name)
    exact.step(lambda keep: q.closure(keep) * 1e-8)
    expected = q.model[0].weight.grad
    torch.testing.assert_close(p.model[0].weight.grad, expected, rtol=0, atol=0.01 * float(expected.abs().max()))


# Weights in low precision ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_neither_overflow_nor_keep_its_few_bits(dtype):
    """Ten thousand times 3,000: the norm, 300,000, is beyond fp16 and between two numbers of bf16."""
    tensors = [torch.full((100, 100), 3000.0, dtype=dtype)]
    exact = 100 * float(tensors[0][0, 0])
    g = Gradients([0, 1], [*tensors, *tensors])
    assert g.norms().tolist() == pytest.approx([exact, exact], rel=1e-5)
    assert float(g.norm()) == pytest.approx(2**0.5 * exact, rel=1e-5)


@every_method
def test_half_and_double_weights_live_in_one_model(name):
    """Norms of both kinds are summed in a type that holds them; eps of the doubles is rho times their share."""
    model = nn.Module()
    # above and below the size where tensors are measured together
    model.weights = nn.ParameterList(
        torch.ones(n, n, dtype=dtype) for n in (80, 2) for dtype in (torch.bfloat16, torch.float64)
    )
    moved = []

    def closure(keep):
        moved.append(float((model.weights[1].detach() - 1).norm()))
        return torch.ones(12, dtype=torch.float64)[keep] * sum(w.double().sum() for w in model.weights)

    EVERY_METHOD[name](torch.optim.SGD(model.parameters(), lr=0.1), model, rho=10.0).step(closure)
    if name not in ("asam", "fsam"):  # whose T is |w| + eta; whose mean of gradients is rounded as the weights are
        assert moved[-1] == pytest.approx(10.0 * (6400 / (2 * 6400 + 2 * 4)) ** 0.5, rel=1e-6)


@every_method
def test_a_tiny_gradient_perturbs_fp16_weights_too(name):
    """rho / norm is above 65,504 here, fp16's largest number."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).half()
    x, y = torch.randn(12, 6).half(), torch.randint(0, 3, (12,))
    before, moved = model.weight.detach().clone(), []

    def closure(keep):
        moved.append(not torch.equal(model.weight, before))
        return F.cross_entropy(model(x[keep]).float(), y[keep], reduction="none") * 1e-6

    EVERY_METHOD[name](torch.optim.SGD(model.parameters(), lr=0.1), model, rho=0.5).step(closure)
    assert moved[0] is False
    assert moved[-1] is True or name == "asam"  # its T^2 g is below fp16's smallest number
    assert all(p.isfinite().all() for p in model.parameters())
