"""What tests of trainers share: batches, and our own loop in its three phases, which a trainer's steps must equal."""

import functools
import os

import torch
import torch.nn.functional as F
from conftest import assert_same, normalised, start
from two_ranks import RANKS, TwoRanks

BATCHES, SIZE = 6, 8


def data(dtype=torch.float64, batches=BATCHES):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batches * SIZE, 6, dtype=dtype, generator=generator)
    return [(x[i : i + SIZE], x[i : i + SIZE, :3].argmax(1)) for i in range(0, len(x), SIZE)]


def loss_function(net, optimizer, factor=1.0, cast=None):
    """Return a loss function: a loss for each sample where the method reads them, else their mean."""

    def loss_of(x, y):
        with torch.autocast("cpu", cast, enabled=cast is not None, cache_enabled=False):
            losses = F.cross_entropy(net(x), y, reduction="none") * factor
        return losses if optimizer.needs_losses else losses.mean()

    return loss_of


def in_phases(
    net, optimizer, loader, *, epochs=1, window=1, clip=None, scaler=None, cast=None, broken=None, after=lambda: None
):
    """Train; return the loss of each micro-batch. The losses of the step ``broken`` are infinite."""
    torch.manual_seed(7)
    windows = [loader[start : start + window] for start in range(0, len(loader), window)]
    losses = []
    for step, micro_batches in enumerate(windows * epochs):
        loss_of = loss_function(net, optimizer, torch.inf if step == broken else 1.0, cast)
        losses += [optimizer.accumulate(loss_of, *batch, scaler=scaler).mean() for batch in micro_batches]
        optimizer.gradient()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            clip(net.parameters(), 0.01)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        after()
    return losses


def by_hand(name, loader, build=normalised, dtype=torch.float64, wrap=lambda net: net, **how):
    """Train a method's net by our phases; return it, and the loss of each micro-batch."""
    p, optimizer = start(name, build, dtype=dtype)
    optimizer.model = wrap(p.model)
    return p.model, in_phases(optimizer.model, optimizer, loader, **how)


# Two processes --------------------------------------------------------------------------------------------------------

ON_RANKS = [("sam", 1), ("sam", 2), ("esam", 1), ("slicesam", 1)]
"""Methods, and how many micro-batches a step has."""


def rank_cases(rank, both):
    """Name what runs on each rank: ``both(name, window, loader)`` trains by the trainer and by our loop."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": RANKS}
    os.environ |= {key: str(value) for key, value in names.items()} | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    loader = data(batches=2 * BATCHES)[rank::RANKS]
    for name, window in ON_RANKS:
        yield (name, window), functools.partial(both, name, window, loader)


def alike_on_two_ranks(folder, cases):
    """Run the cases; the ranks must end alike, by the trainer and by our loop. Return what they saw."""
    with TwoRanks(folder, fork=True) as both:
        first, second = both(every_case, cases)
    for case in ON_RANKS:
        trainers, ours = first[case]
        assert_same(trainers, ours)
        assert_same(trainers, second[case][0])
    return first, second


def every_case(rank, cases):
    return {name: case() for name, case in cases(rank)}
