"""Lightning Fabric: are its loop's steps those of the plain one, in every precision and on two ranks?"""

import os
import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import normalised, problem
from two_ranks import RANKS, needs_gloo, on_two_ranks

from esam import METHODS, SAM

fabric_package = pytest.importorskip("lightning.fabric")
from esam.integrations.fabric import backward  # noqa: E402

STEPS = 4


def started(name="slicesam", build=normalised, **settings):
    p = problem(build, batch=16, dtype=torch.float32)
    return p, METHODS[name](torch.optim.SGD(p.model.parameters(), lr=0.05, momentum=0.9), p.model, seed=3, **settings)


def in_fabric(fabric, name, *, accumulated=False, clip=False):
    p, optimizer = started(name)
    model, optimizer = fabric.setup(p.model, optimizer)

    def loss_of(x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    losses = []
    for step in range(STEPS):
        torch.manual_seed(step)
        if accumulated:
            losses.append(backward(fabric, optimizer, loss_of, p.x[:8], p.y[:8], last=False))
            losses.append(backward(fabric, optimizer, loss_of, p.x[8:], p.y[8:]))
        else:
            losses.append(backward(fabric, optimizer, loss_of, p.x, p.y))
        if clip:
            fabric.clip_gradients(model, optimizer, max_norm=0.1)
        optimizer.step()
    return p.model.state_dict(), torch.stack(losses)


def by_hand(name, *, accumulated=False, clip=False, cast=False):
    p, optimizer = started(name)

    def loss_of(x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            outputs = p.model(x.bfloat16() if cast else x)
        return F.cross_entropy(outputs.float(), y, reduction="none")

    for step in range(STEPS):
        torch.manual_seed(step)
        for rows in (slice(0, 8), slice(8, 16)) if accumulated else (slice(0, 16),):
            optimizer.accumulate(loss_of, p.x[rows], p.y[rows])
        optimizer.gradient()
        if clip:
            torch.nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
        optimizer.step()
    return p.model.state_dict()


def assert_equal(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", ["sam", "esam", "slicesam"])
@pytest.mark.parametrize("how", [{"clip": True}, {"accumulated": True}], ids=str)
def test_a_loop_in_32_bits_takes_the_plain_loops_steps_bit_for_bit(name, how):
    fabric = fabric_package.Fabric(accelerator="cpu", devices=1, precision="32-true")
    assert_equal(in_fabric(fabric, name, **how)[0], by_hand(name, **how))


@pytest.mark.parametrize("name", ["sam", "slicesam"])
def test_a_loop_in_mixed_precision_takes_the_steps_of_autocast_bit_for_bit(name):
    fabric = fabric_package.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    assert_equal(in_fabric(fabric, name)[0], by_hand(name, cast=True))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_body_may_stay_inline(precision):
    fabric = fabric_package.Fabric(accelerator="cpu", devices=1, precision=precision)
    p, optimizer = started("sam")
    model, optimizer = fabric.setup(p.model, optimizer)
    for step in range(STEPS):
        torch.manual_seed(step)
        for x, y in optimizer.optimizer.passes(p.x, p.y, backward=fabric.backward):
            optimizer.optimizer.backward(F.cross_entropy(model(x), y))
        optimizer.step()
    expected = by_hand("sam", cast=precision == "bf16-mixed")
    for key, value in p.model.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-6)  # a mean of float32, in another order


def test_a_second_backward_before_the_step_is_refused_and_names_what_accumulates():
    fabric = fabric_package.Fabric(accelerator="cpu", devices=1)
    p, optimizer = started("sam")
    _, optimizer = fabric.setup(p.model, optimizer)
    backward(fabric, optimizer, p.loss_of, p.x[:8], p.y[:8])
    with pytest.raises(ValueError, match="last=False"):
        backward(fabric, optimizer, p.loss_of, p.x[8:], p.y[8:])


def test_the_wrapper_is_named_where_it_is_taken_for_the_optimizer():
    fabric = fabric_package.Fabric(accelerator="cpu", devices=1)
    p, optimizer = started("sam")
    _, optimizer = fabric.setup(p.model, optimizer)
    with pytest.raises(ValueError, match=r"fabric\.backward"):
        optimizer.accumulate(p.loss_of, p.x, p.y)
    with pytest.raises(ValueError, match="esam's optimizers"):
        backward(fabric, torch.optim.SGD(p.model.parameters(), lr=0.1), p.loss_of, p.x, p.y)


def cases(rank):
    """Fabric's own ddp on this rank, and the plain loop with DistributedDataParallel."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(RANKS), "MASTER_PORT": "0"}
    rows = slice(8 * rank, 8 * rank + 8)

    def trained(name, by_fabric, **settings):
        p = problem(batch=16, dtype=torch.float64, seed=0)
        optimizer = METHODS[name](torch.optim.SGD(p.model.parameters(), lr=0.05), p.model, seed=3, **settings)
        if by_fabric:
            fabric = fabric_package.Fabric(accelerator="cpu", devices=RANKS, strategy="ddp")
            fabric.launch()
            model, wrapped = fabric.setup(p.model, optimizer)
            assert (fabric.world_size, fabric.global_rank) == (RANKS, rank)
        else:
            optimizer.model = model = torch.nn.parallel.DistributedDataParallel(p.model)
        for _ in range(STEPS):
            if by_fabric:
                backward(fabric, wrapped, lambda x, y: F.cross_entropy(model(x), y), p.x[rows], p.y[rows])
                wrapped.step()
            else:
                optimizer.step(lambda x, y: F.cross_entropy(model(x), y), p.x[rows], p.y[rows])
        return p.weights

    for name in ("sam", "slicesam"):
        for by_fabric in (True, False):
            yield (name, by_fabric), lambda name=name, by_fabric=by_fabric: trained(name, by_fabric)
    yield "global", lambda: trained("sam", True, perturbation="global")


@needs_gloo
@pytest.mark.slow
def test_fabrics_ddp_takes_the_plain_loops_steps_and_with_one_eps_those_of_one_process(tmp_path):
    p = problem(batch=16, dtype=torch.float64, seed=0)
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.05), p.model)
    for _ in range(STEPS):
        p.step(optimizer)
    for seen in on_two_ranks(tmp_path, cases, fork=True):
        for name in ("sam", "slicesam"):
            torch.testing.assert_close(seen[name, True], seen[name, False], rtol=0, atol=0)
        torch.testing.assert_close(seen["global"], p.weights, rtol=0, atol=1e-12)
