"""What tests with two processes share (gloo, loopback): starting them, stopping them in time, and a loop by hand."""

import datetime
import functools
import itertools
import math
import os
import time
import traceback
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from esam import GuidanceWarning
from esam.optim import reference

RANKS = 2
BATCH = 8

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


# Processes ------------------------------------------------------------------------------------------------------------


def on_two_ranks(folder, cases, seconds=300, *, fork=False):
    """Run ``cases(rank)``, names and functions, on both ranks; return what each case returned, rank by rank.

    A case that fails on any rank ends both processes: what it left half done would spoil the next. ``fork`` saves the
    imports of a trainer, which take seconds; not where torch has threads for accelerators.
    """
    method = "fork" if fork and not torch.accelerator.is_available() else "spawn"
    context = torch.multiprocessing.start_processes(
        _worker, (str(folder), cases, seconds), RANKS, join=False, start_method=method
    )
    end = time.monotonic() + seconds
    try:
        while not context.join(timeout=max(0.1, end - time.monotonic())):
            assert time.monotonic() < end, f"the ranks did not end in {seconds} seconds"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    ranks = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(RANKS)]
    errors = [seen.pop("error") for seen in ranks if "error" in seen]
    return [Seen(seen, errors) for seen in ranks]


class Seen(dict):
    """What one rank saw, by case; asking for a case that failed, or that came after it, says why."""

    def __init__(self, seen, errors):
        super().__init__(seen)
        self.errors = errors

    def __repr__(self):
        return f"<{len(self)} cases>"

    def __missing__(self, case):
        pytest.fail("\n".join(self.errors) or f"no case {case!r}")


def _worker(rank, folder, cases, seconds):
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # Accelerate warns where nobody has said
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "a part of the batch runs apart")  # as in pyproject.toml
    warnings.simplefilter("ignore", GuidanceWarning)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-point",
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=min(60, seconds)),
    )
    seen = {}
    try:
        for name, case in cases(rank):
            try:
                seen[name] = case()
            except Exception:
                seen["error"] = f"{name} on rank {rank}: {traceback.format_exc()}"
                break
    finally:
        torch.save(seen, f"{folder}/rank{rank}.pt")
        dist.destroy_process_group()


def why_refused(function, *arguments):
    """Return the message of the ValueError that a call ends in."""
    try:
        function(*arguments)
    except ValueError as error:
        return str(error)
    raise AssertionError("not refused")


# A small problem ------------------------------------------------------------------------------------------------------


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batch_of(rank, step, size=BATCH):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 4, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (size,), generator=generator)


def joined(step):
    """Return the batches of all ranks as one."""
    return tuple(torch.cat(parts) for parts in zip(*(batch_of(rank, step) for rank in range(RANKS)), strict=True))


def losses_of(model, x, y, keep=slice(None)):
    return F.cross_entropy(model(x[keep]), y[keep], reduction="none")


def closures_of(model, x, y, cuts=None):
    """Return one closure a micro-batch."""
    return [functools.partial(losses_of, model, x[a:b], y[a:b]) for a, b in itertools.pairwise(cuts or (0, len(x)))]


def take_step(optimizer, closures, phases=False):
    sizes = [len(closure.args[2]) for closure in closures]
    if not phases:
        return optimizer.step(closures, batch_size=sizes)
    for closure, size in zip(closures, sizes, strict=True):
        optimizer.accumulate(closure, batch_size=size)
    loss = optimizer.gradient()
    optimizer.step()
    return loss


def train(model, optimizer, batch, steps, cuts=None, phases=False):
    """Take a step by ``batch(step)`` for each of ``steps``; return the weights."""
    for step in steps:
        take_step(optimizer, closures_of(model, *batch(step), cuts), phases)
    return whole_weights(model)


def whole_weights(model):
    """Return copies of the weights, gathered where they are sharded."""
    return [whole(p.detach()) for p in model.parameters()]


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


# Comparisons ----------------------------------------------------------------------------------------------------------


def assert_near(a, b):
    """Equal but for the order of sums: some hundred roundings of numbers near 1 in float64 stay below 1e-12."""
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


def assert_same(a, b):
    """Equal bit for bit."""
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def distance(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


# ESAM on several ranks, by hand ---------------------------------------------------------------------------------------


class InBlocks(reference.ESAM):
    """ESAM that selects within each block of the batch: what a rank has, or each of its micro-batches."""

    blocks = ()

    def b_plus(self, rise):
        if self.gamma == 1:
            return reference.EVERYTHING
        return torch.cat([a + reference.ESAM.b_plus(self, rise[a:b]) for a, b in self.blocks])


def esam_by_hand(steps, *, rho, beta, gamma, one_eps, cuts=(0, BATCH)):
    """Train where each rank perturbs by its own gradient, or all by the mean of theirs; return the weights.

    With beta and gamma 1 it is SAM. Second gradients are averaged; samples are selected between ``cuts`` of each rank.
    """
    model = mlp()
    base, weights = sgd(model), list(model.parameters())
    twins = [InBlocks(rho, beta, gamma, torch.Generator().manual_seed(3)) for _ in range(1 if one_eps else RANKS)]
    for twin in twins:
        starts = range(0, BATCH * RANKS if one_eps else BATCH, BATCH)
        twin.blocks = [(start + a, start + b) for start in starts for a, b in itertools.pairwise(cuts)]
    for step in steps:
        batches = [joined(step)] if one_eps else [batch_of(rank, step) for rank in range(RANKS)]
        each = [
            twin(functools.partial(losses_of, model, *batch), weights)
            for twin, batch in zip(twins, batches, strict=True)
        ]
        for w, *gradients in zip(weights, *each, strict=True):
            w.grad = sum(gradients) / len(gradients)
        norms = [math.hypot(*own) / len(own) ** 0.5 for own in zip(*(t.last_norm for t in twins), strict=True)]
        for twin in twins:  # what is remembered is the mean over ranks, of squares
            twin.last_norm = norms
        base.step()
    return whole_weights(model)
