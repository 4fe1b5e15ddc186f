"""Which rank of a run is this process, what is its part of a batch, and what do ranks exchange?"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Rows:
    """A rank's rows of a batch."""

    index: slice
    batch_size: int
    """Of the batch, on all ranks together."""
    weight: float
    """The factor on these rows' mean loss that makes the mean over the ranks that of the batch; 0 where the rows are
    another rank's, borrowed."""


PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others: rank 0 may be measuring, or writing to a slow disk."""
LOST = (
    "another rank of this run has ended, so this one ends too; the run stands at its last checkpoint, and the same "
    "command resumes it (torchrun --max-restarts 3 does so by itself)"
)

T = TypeVar("T")
_of_torchrun = False


class Ranks:
    """The processes that train one model together; the first logs and writes.

    A process alone is rank 0 of 1, and nothing is exchanged.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self.first, self.several = rank == 0, count > 1

    @classmethod
    def current(cls) -> Ranks:
        """Return those of the process group that this process has joined, if it has."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def rows(self, batch_size: int) -> Rows:
        """Return this rank's rows of a batch, which is cut into as many runs of neighbours as there are ranks.

        Where there are fewer rows than ranks, perhaps one that does not count: a rank without samples would hold up the
        others, which wait for its gradient.

        >>> [Ranks(rank, 3).rows(2).weight for rank in range(3)]
        [0.0, 1.5, 1.5]
        """
        start, stop = (place * batch_size // self.count for place in (self.rank, self.rank + 1))
        if start < stop:
            return Rows(slice(start, stop), batch_size, (stop - start) * self.count / batch_size)
        borrowed = min(start, batch_size - 1)
        return Rows(slice(borrowed, borrowed + 1), batch_size, 0.0)

    def sum(self, values: list[float]) -> list[float]:
        """Return the sum of each number over the ranks: the same bits on all of them."""
        return [sum(column) for column in zip(*self.all_of(values), strict=True)] if self.several else values

    def from_first(self, value: T) -> T:
        """Return what rank 0 has."""
        if not self.several:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]  # type: ignore[no-any-return]

    def all_of(self, value: T) -> list[T]:
        """Return what each rank has, rank by rank."""
        if not self.several:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values


@contextmanager
def joined() -> Iterator[Ranks]:
    """Be one of the ranks that torchrun has started, for as long as the block lasts: gloo on CPUs, NCCL on GPUs.

    Where another rank has ended, the error says so.
    """
    global _of_torchrun
    started = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    ours = started > 1 and not dist.is_initialized()
    if ours:
        _of_torchrun = True
        _explain_termination()
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        from torch.distributed.distributed_c10d import PrefixStore  # not in every build of torch
        from torch.distributed.rendezvous import rendezvous

        store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
        # torchrun keeps one store for all restarts, and a restarted rank may find the address of one that was killed
        # (PyTorch's issue 135712). On one machine the count of restarts tells them apart; several count differently.
        if os.environ.get("LOCAL_WORLD_SIZE") == str(count):
            store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
    try:
        yield Ranks.current()
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error) or "by peer" in str(error):
            raise RuntimeError(f"{LOST} ({str(error).splitlines()[0]:.200})") from error
        raise
    if ours and torch.cuda.is_available():  # NCCL asks for it; after an error it would wait for the others
        dist.destroy_process_group()


def end_rank(code: int) -> None:
    """End a process that has joined torchrun's ranks, all being written; return in any other.

    At once: as Python takes a process group of gloo apart, its threads now and then abort the process, or hang.
    """
    if _of_torchrun:
        for channel in (sys.stdout, sys.stderr):
            channel.flush()
        os._exit(code)


def local_rank() -> int:
    """Return which of this machine's ranks this is, and so which of its GPUs it has."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _explain_termination() -> None:
    """Say why, when torchrun ends this process because another has failed."""
    this_process = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() != this_process:  # a worker that decodes, forked from this process
            os._exit(128 + number)
        raise RuntimeError(LOST)

    signal.signal(signal.SIGTERM, end)


def in_parallel(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Return what trains on this rank: the model in DistributedDataParallel, or as it is where there is no other."""
    if not ranks.several:
        return model
    device = next(model.parameters()).device
    devices = None if device.type == "cpu" else [device]
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel: a forward of it exchanges nothing."""
    return model.module if isinstance(model, DistributedDataParallel) else model
