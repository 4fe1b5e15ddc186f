"""What tests of trainers share: batches, and our own loop in its three phases, which a trainer's steps must equal."""

import os

import torch
import torch.nn.functional as F
from conftest import assert_same, normalised, start
from two_ranks import RANKS

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


def on_rank(rank, train, name, window):
    """Call ``train(name, window, loader)`` with this rank's batches, in a process as torchrun starts it."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": RANKS}
    os.environ |= {key: str(value) for key, value in names.items()} | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return train(name, window, data(batches=2 * BATCHES)[rank::RANKS])


def alike_on_two_ranks(ranks, both):
    """The nets that ``both`` trains, by the trainer and by our loop, must end alike, and so on each of two ranks."""
    for case in ON_RANKS:
        (trainers, ours), (others, _) = ranks(on_rank, both, *case)
        assert_same(trainers, ours)
        assert_same(trainers, others)
