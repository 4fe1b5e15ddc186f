"""Lightning Fabric: are its loop's steps those of the plain one, in every precision and on two ranks?"""

import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import mlp, normalised, start
from our_loop import BATCHES, alike_on_two_ranks, assert_same, by_hand, data, loss_function, on_rank
from torch import nn
from two_ranks import RANKS, TwoRanks, needs_gloo

fabric_package = pytest.importorskip("lightning.fabric")
from esam.integrations.fabric import backward  # noqa: E402


def fabric_of(**settings):
    return fabric_package.Fabric(accelerator="cpu", **{"devices": 1, **settings})


def in_fabric(fabric, name, loader, build=normalised, dtype=torch.float32, *, window=1, clip=None, **settings):
    p, optimizer = start(name, build, dtype=dtype, **settings)
    model, wrapped = fabric.setup(p.model, optimizer)
    torch.manual_seed(7)
    for number, batch in enumerate(loader, start=1):
        last = number % window == 0 or number == len(loader)
        backward(fabric, wrapped, loss_function(model, optimizer), *batch, last=last)
        if last and clip is not None:
            fabric.clip_gradients(model, wrapped, max_norm=0.01)
        if last:
            wrapped.step()
    return p.model


FLOATS = data(torch.float32)


@pytest.mark.parametrize("name", ["sam", "esam", "slicesam"])
@pytest.mark.parametrize(
    ("precision", "how"),
    [("32-true", {"clip": nn.utils.clip_grad_norm_}), ("32-true", {"window": 2}), ("bf16-mixed", {})],
)
def test_a_loop_takes_the_plain_loops_steps_bit_for_bit(name, precision, how):
    cast = torch.bfloat16 if precision == "bf16-mixed" else None
    expected, _ = by_hand(name, FLOATS, dtype=torch.float32, cast=cast, **how)
    assert_same(in_fabric(fabric_of(precision=precision), name, FLOATS, **how), expected)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_body_may_stay_inline(precision):
    fabric, (p, optimizer) = fabric_of(precision=precision), start("sam", normalised, dtype=torch.float32)
    model, wrapped = fabric.setup(p.model, optimizer)
    torch.manual_seed(7)
    for batch in FLOATS:
        for x, y in optimizer.passes(*batch, backward=fabric.backward):
            optimizer.backward(F.cross_entropy(model(x), y))
        wrapped.step()
    cast = torch.bfloat16 if precision == "bf16-mixed" else None
    expected, _ = by_hand("sam", FLOATS, dtype=torch.float32, cast=cast)
    assert_same(p.model, expected, atol=1e-6)  # a mean of float32, in another order


def test_a_second_backward_before_the_step_is_refused_and_names_what_accumulates():
    fabric, (p, optimizer) = fabric_of(), start("sam", dtype=torch.float32)
    _, optimizer = fabric.setup(p.model, optimizer)
    backward(fabric, optimizer, p.loss_of, p.x[:8], p.y[:8])
    with pytest.raises(ValueError, match="last=False"):
        backward(fabric, optimizer, p.loss_of, p.x[8:], p.y[8:])


def test_the_wrapper_is_named_where_it_is_taken_for_the_optimizer():
    fabric, (p, optimizer) = fabric_of(), start("sam", dtype=torch.float32)
    _, optimizer = fabric.setup(p.model, optimizer)
    with pytest.raises(ValueError, match=r"fabric\.backward"):
        optimizer.accumulate(p.loss_of, p.x, p.y)
    with pytest.raises(ValueError, match="esam's optimizers"):
        backward(fabric, torch.optim.SGD(p.model.parameters(), lr=0.1), p.loss_of, p.x, p.y)


def by_ddp(name, window, loader, **settings):
    """Train by Fabric's own ddp on this rank."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    fabric = fabric_of(devices=RANKS, strategy="ddp")
    fabric.launch()
    assert (fabric.world_size, fabric.global_rank) == (RANKS, torch.distributed.get_rank())
    return in_fabric(fabric, name, loader, mlp, torch.float64, window=window, **settings)


def both(name, window, loader):
    ours, _ = by_hand(name, loader, mlp, wrap=nn.parallel.DistributedDataParallel, window=window)
    return by_ddp(name, window, loader), ours


@needs_gloo
@pytest.mark.slow
def test_fabrics_ddp_takes_the_plain_loops_steps_and_with_one_eps_those_of_one_process(tmp_path):
    loader = data(batches=2 * BATCHES)
    joined = [tuple(map(torch.cat, zip(*pair, strict=True))) for pair in zip(loader[::2], loader[1::2], strict=True)]
    expected, _ = by_hand("sam", joined, mlp)
    with TwoRanks(tmp_path, fork=True) as ranks:
        alike_on_two_ranks(ranks, both)
        for found in ranks(on_rank, functools.partial(by_ddp, perturbation="global"), "sam", 1):
            assert_same(found, expected, atol=1e-12)
