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

from esam import METHODS, GuidanceWarning

RANKS = 2
SEVERAL = {name: row for name, row in METHODS.items() if name != "sam-on"}  # which wants norm layers
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


class ESAMByHand:
    """Each rank perturbs by its own gradient, or all by the mean of theirs; second gradients are averaged.

    With beta and gamma 1 it is SAM. ``micro_batches`` selects within each micro-batch; else within what a rank has.
    """

    def __init__(self, model, *, rho, beta, gamma, one_eps, micro_batches=False, seed=3):
        self.model, self.weights = model, list(model.parameters())
        self.rho, self.beta, self.gamma = rho, beta, gamma
        self.one_eps, self.micro_batches = one_eps, micro_batches
        self.generator = torch.Generator().manual_seed(seed)
        self.known = None

    def gradient(self, batches, cuts=None):
        """Return the gradient of one step on ``batches``, one a rank."""
        count = len(self.weights)
        first = [torch.autograd.grad(losses_of(self.model, *batch).mean(), self.weights) for batch in batches]
        if self.one_eps:
            first = [[sum(g) / len(first) for g in zip(*first, strict=True)]] * len(first)
        drawn, scale = [True] * count, 1.0
        if self.beta < 1:
            drawn = (torch.rand(count, generator=self.generator) < self.beta).tolist()
            if not any(drawn):
                drawn[int(torch.randint(count, (), generator=self.generator))] = True
            if self.known is None:
                drawn, self.known = [True] * count, [0.0] * count
            else:
                scale = 1 / (self.beta + (1 - self.beta) ** count / count)
        norms = [[float(g.norm()) for g in gradients] for gradients in first]
        seconds = []
        for batch, gradients, own in zip(batches, first, norms, strict=True):
            length = math.hypot(*(own[n] if drawn[n] else self.known[n] for n in range(count)))
            eps = [scale * self.rho * g / length * d for g, d in zip(gradients, drawn, strict=True)]
            seconds.append(self._second(batch, eps, cuts if self.micro_batches else None))
        if self.beta < 1:
            mean = [math.sqrt(sum(own[n] ** 2 for own in norms) / len(norms)) for n in range(count)]
            self.known = [mean[n] if drawn[n] else self.known[n] for n in range(count)]
        return [sum(g) / len(seconds) for g in zip(*seconds, strict=True)]

    def _second(self, batch, eps, cuts):
        """Return the mean gradient at theta + eps of the samples whose loss rises most."""
        x, y = batch
        with torch.no_grad():
            theta, before = [w.clone() for w in self.weights], losses_of(self.model, x, y)
            for w, e in zip(self.weights, eps, strict=True):
                w += e
            rise = losses_of(self.model, x, y) - before
        keep = []
        for start, stop in itertools.pairwise(cuts or (0, len(x))):
            highest = rise[start:stop].argsort(descending=True)[: max(1, round(self.gamma * (stop - start)))]
            keep += (start + highest).tolist()
        second = torch.autograd.grad(losses_of(self.model, x, y, sorted(keep)).mean(), self.weights)
        with torch.no_grad():
            for w, t in zip(self.weights, theta, strict=True):
                w.copy_(t)
        return second

    def train(self, base, steps, cuts=None):
        for step in steps:
            gradients = self.gradient([batch_of(rank, step) for rank in range(RANKS)], cuts)
            for w, g in zip(self.weights, gradients, strict=True):
                w.grad = g
            base.step()
        return whole_weights(self.model)
