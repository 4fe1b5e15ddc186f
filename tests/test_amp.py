"""Low precision: does autocast hide the perturbation, does the scaler cancel, does an overflow leave a trace?"""

import itertools

import conftest
import pytest
import torch
import torch.nn.functional as F
from conftest import PERTURBING, assert_same
from torch import nn

from esam import METHODS, SAM
from esam.optim import Gradients


def bf16():
    return torch.autocast("cpu", torch.bfloat16)


def cpu_scaler(scale=1024.0, **settings):
    return torch.amp.GradScaler("cpu", init_scale=scale, **settings)


def start(name, **settings):
    return conftest.start(name, dtype=torch.float32, **settings)


def split_in_two(closure):
    """Return two micro-batches of a batch of twelve."""
    of_all = torch.arange(12)
    return [lambda keep, part=part: closure(part[keep]) for part in (of_all[:5], of_all[5:])]


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_autocast_around_one_step_or_many_equals_autocast_inside_the_loss_function(name):
    for closures in (lambda closure: closure, split_in_two):
        (p, inside), (q, around), (r, block) = (start(name, rho=0.5) for _ in range(3))

        def cast(keep, p=p):
            with bf16():
                return p.closure(keep)

        for _ in range(4):
            inside.step(closures(cast))
            with bf16():
                around.step(closures(q.closure))
        with bf16():  # never trains on the last step's weights
            for _ in range(4):
                block.step(closures(r.closure))
        assert_same(p.weights, q.weights)
        assert_same(p.weights, r.weights)


def test_autocast_around_accumulate_alone_holds_in_the_second_pass():
    p, optimizer = start("sam")
    seen = []
    p.model[0].register_forward_hook(lambda m, i, output: seen.append(output.dtype))
    with bf16():
        optimizer.accumulate(p.loss_of, p.x, p.y)
    optimizer.gradient()
    assert seen == [torch.bfloat16, torch.bfloat16]


# GradScaler -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({*PERTURBING} - {"slicesam"}))  # whose closures come with a size
def test_a_scale_of_a_power_of_two_cancels_bit_for_bit(name):
    for closures in (lambda closure: closure, split_in_two):
        (p, plain), (q, scaled) = start(name), start(name)
        scaler = cpu_scaler(2.0**14)
        for _ in range(7):
            a = plain.step(closures(p.closure))
            b = scaled.step(closures(q.closure), scaler=scaler)
            scaler.update()
            assert a == b
        assert_same(p.weights, q.weights)
        assert scaler.get_scale() == 2.0**14


@pytest.mark.parametrize("name", ["base", "sam", "looksam", "esam", "slicesam"])
def test_a_hook_and_a_trainer_clip_the_same_unscaled_gradient_with_a_scaler_or_without(name):
    """A scale of a power of two cancels, but for the roundings of sums that are scaled before or after."""
    ends = []
    for by_hook, scaler in itertools.product((True, False), (cpu_scaler(enabled=False), cpu_scaler(2.0**12))):
        p, optimizer = start(name, base="fused adam")  # to a fused base the scaler hands scaled gradients
        norms = []

        def clip(*_, p=p, norms=norms):
            norms.append(nn.utils.clip_grad_norm_(p.model.parameters(), 0.01))

        if by_hook:
            optimizer.register_step_pre_hook(clip)
        for _ in range(4):
            if by_hook:
                p.step(optimizer, scaler=scaler if scaler.is_enabled() else None)
            else:
                optimizer.accumulate(p.loss_of, p.x, p.y, scaler=scaler)
                optimizer.gradient()
                scaler.unscale_(optimizer)  # the order of Lightning and Accelerate
                clip()
                scaler.step(optimizer)
            scaler.update()
        assert min(norms) > 0.01  # it clipped
        ends.append([*norms, *p.weights])
    hooked, hooked_scaled, phased, phased_scaled = ends
    assert_same(hooked, phased)
    assert_same(hooked, hooked_scaled, atol=1e-6)
    assert_same(hooked, phased_scaled, atol=1e-6)


def test_an_overflow_in_any_group_of_m_samples_skips_the_whole_step():
    for call in range(1, 7):
        p, optimizer = start("sam", m=4)
        weights, calls = p.weights, []

        def loss_of(x, y, p=p, calls=calls, call=call):
            calls.extend([x] * torch.is_grad_enabled())  # not where the whole is compared with its parts
            return p.loss_of(x, y) * (torch.inf if len(calls) == call and torch.is_grad_enabled() else 1)

        scaler = cpu_scaler()
        p.step(optimizer, loss_of, scaler=scaler)
        scaler.update()
        assert_same(weights, p.weights)
        assert scaler.get_scale() == 512.0


def test_an_overflow_is_reported_though_the_gradients_share_their_memory():
    """A sum's gradient is one number seen from every place; the scaler writes in place."""
    w = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = SAM(torch.optim.SGD([w], lr=1e-6), nn.ParameterList([w]))
    scaler = cpu_scaler(1.0)
    optimizer.step(lambda x: (w.sum() + x) * torch.inf, torch.zeros(4), scaler=scaler)
    scaler.update()
    assert scaler.get_scale() == 0.5
    assert w.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["sam", "esam"])
def test_a_gradient_that_fp16_would_flush_to_zero_trains_with_the_scaler(name):
    """Losses of a hundred-millionth: fp16 gradients below 6e-8 vanish. Scaled by 65,536 they come through."""
    seen = []
    for cast, scaler in ((True, None), (True, cpu_scaler(2.0**16)), (False, None)):
        p, optimizer = start(name)

        def loss_of(x, y, p=p, cast=cast):
            with torch.autocast("cpu", torch.float16, enabled=cast):
                outputs = p.model(x)
            return F.cross_entropy(outputs.float(), y, reduction="none") * 1e-8

        p.step(optimizer, loss_of, scaler=scaler)
        seen.append(p.model[0].weight.grad)
    unscaled, scaled, exact = seen
    assert float(unscaled.abs().max()) == 0
    assert_same(scaled, exact, atol=0.01 * float(exact.abs().max()))


# Weights in low precision ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_neither_overflow_nor_keep_its_few_bits(dtype):
    """Ten thousand times 3,000: the norm, 300,000, is beyond fp16 and between two numbers of bf16."""
    tensors = [torch.full((100, 100), 3000.0, dtype=dtype)]
    exact = 100 * float(tensors[0][0, 0])
    g = Gradients([0, 1], [*tensors, *tensors])
    assert g.norms().tolist() == pytest.approx([exact, exact], rel=1e-5)
    assert float(g.norm()) == pytest.approx(2**0.5 * exact, rel=1e-5)


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_half_and_double_weights_live_in_one_model(name):
    """Norms of both kinds are summed in a type that holds them; eps of the doubles is rho times their share."""
    # above and below the size where tensors are measured together
    model = nn.ParameterList(
        torch.ones(n, n, dtype=dtype) for n in (80, 2) for dtype in (torch.bfloat16, torch.float64)
    )
    moved = []

    def closure(keep):
        moved.append(float((model[1].detach() - 1).norm()))
        return torch.ones(12, dtype=torch.float64)[keep] * sum(w.double().sum() for w in model)

    METHODS[name](torch.optim.SGD(model.parameters(), lr=0.1), model, rho=10.0).step(closure)
    assert moved[-1] == pytest.approx(10.0 * (6400 / (2 * 6400 + 2 * 4)) ** 0.5, rel=1e-6)


def test_a_tiny_gradient_perturbs_fp16_weights_too():
    """rho / norm is above 65,504 here, fp16's largest number."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).half()
    before, moved = model.weight.detach().clone(), []

    def loss_of(x, y):
        moved.append(not torch.equal(model.weight, before))
        return F.cross_entropy(model(x).float(), y, reduction="none") * 1e-6

    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), model, rho=0.5)
    optimizer.step(loss_of, torch.randn(12, 6).half(), torch.randint(0, 3, (12,)))
    assert moved == [False, True]
    assert all(p.isfinite().all() for p in model.parameters())
