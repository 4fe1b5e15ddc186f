"""What tests with two processes share (gloo, loopback): starting them, stopping them in time, and a small problem."""

import datetime
import functools
import itertools
import os
import pickle
import traceback
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from esam import GuidanceWarning

RANKS = 2
BATCH = 8

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


# Processes ------------------------------------------------------------------------------------------------------------


class TwoRanks:
    """Two ranks that run, until a ``with`` block ends, what they are sent, each function in so many seconds.

    A function that fails on either ends both: what it left half done would spoil the next. ``fork`` saves the imports
    of a trainer, which take seconds; not where torch has threads for accelerators.
    """

    def __init__(self, folder, seconds=300, *, fork=False):
        method = "fork" if fork and not torch.accelerator.is_available() else "spawn"
        context = torch.multiprocessing.get_context(method)
        self._seconds, self._answers, self._error = seconds, {}, None
        self._ranks = []
        for rank in range(RANKS):
            pipe, other_end = context.Pipe()
            process = context.Process(target=_serve, args=(rank, str(folder), seconds, other_end))
            process.start()
            other_end.close()
            self._ranks.append((process, pipe))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, _ in self._ranks:
            process.kill()
            process.join()

    def __call__(self, function, *arguments, **settings):
        """Return what ``function(rank, ...)`` returned on each rank; what was sent before is not run again."""
        message = pickle.dumps((function, arguments, settings))
        if message not in self._answers:
            if self._error is None:
                self._answers[message] = self._run(message)
            if self._error is not None:
                pytest.fail(self._error)
        return self._answers[message]

    def _run(self, message):
        answers, errors = [], []
        for _, pipe in self._ranks:
            pipe.send_bytes(message)
        for rank, (_, pipe) in enumerate(self._ranks):
            try:
                if not pipe.poll(self._seconds):
                    raise EOFError
                error, answer = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionError):
                error, answer = "it has ended, or not answered in time", None
            answers.append(answer)
            errors += [f"rank {rank}: {error}"] if error else []
        self._error = "\n".join(errors) or None
        return answers


def _serve(rank, folder, seconds, pipe):
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
    error = None
    while error is None:
        try:
            function, arguments, settings = pickle.loads(pipe.recv_bytes())
            answer = None, function(rank, *arguments, **settings)
        except Exception:
            error = traceback.format_exc()
            answer = error, None
        pipe.send_bytes(pickle.dumps(answer))
    dist.destroy_process_group()


# A small problem ------------------------------------------------------------------------------------------------------


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batch_of(rank, step, size=BATCH):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 4, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (size,), generator=generator)


def joined(step, batch=batch_of):
    """Return the batches of all ranks as one."""
    return tuple(torch.cat(parts) for parts in zip(*(batch(rank, step) for rank in range(RANKS)), strict=True))


def losses_of(model, x, y, keep=slice(None)):
    return F.cross_entropy(model(x[keep]), y[keep], reduction="none")


def take_step(model, optimizer, x, y, cuts=None, phases=False):
    """Take a step by the micro-batches between cuts, in one call or in its phases."""
    parts = [(x[a:b], y[a:b]) for a, b in itertools.pairwise(cuts or (0, len(x)))]
    if not phases:
        closures = [functools.partial(losses_of, model, *part) for part in parts]
        optimizer.step(closures, batch_size=[len(part) for _, part in parts])
        return
    for part in parts:
        optimizer.accumulate(functools.partial(losses_of, model), *part)
    optimizer.gradient()
    optimizer.step()


def train(model, optimizer, batch, steps, cuts=None, phases=False):
    """Take a step by ``batch(step)`` for each of ``steps``; return the weights."""
    for step in steps:
        take_step(model, optimizer, *batch(step), cuts, phases)
    return whole_weights(model)


def whole_weights(model):
    """Return copies of the weights, gathered where they are sharded."""
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in model.parameters()]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


# Comparisons ----------------------------------------------------------------------------------------------------------


def assert_near(*runs):
    """Equal but for the order of sums: some hundred roundings of numbers near 1 in float64 stay below 1e-12."""
    for run in runs[1:]:
        torch.testing.assert_close(run, runs[0], rtol=0, atol=1e-12)


def assert_same(*runs):
    """Equal bit for bit."""
    for run in runs[1:]:
        torch.testing.assert_close(run, runs[0], rtol=0, atol=0)


def distance(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))
