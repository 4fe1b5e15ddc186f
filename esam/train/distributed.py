"""Which rank of a run is this process, what is its part of a batch, and what do ranks exchange?"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .samples import Inputs, as_pair, rows_of

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


@dataclass(frozen=True)
class Rows:
    """Neighbouring rows of a batch."""

    start: int
    stop: int
    whole: int
    """How many rows the batch has, on all ranks together."""
    counted: int
    """How many of these rows count: all, or none where they are borrowed."""

    @property
    def slice(self) -> slice:
        """The rows as an index."""
        return slice(self.start, self.stop)


class Part(NamedTuple):
    """What a rank sees of a batch."""

    x: Inputs
    y: Tensor
    counted: int
    """How many of the samples count: all, or none where they are borrowed."""
    whole: int
    """How many samples the batch has, on all ranks together."""


PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others: rank 0 may be measuring, or writing to a slow disk."""
LOST = (
    "another rank of this run has ended, so this one ends too; the run stands at its last checkpoint, and the same "
    "command resumes it (torchrun --max-restarts 3 does so by itself)"
)

T = TypeVar("T")
_of_torchrun = False


class Ranks:
    """The processes that train one model together; a process alone is rank 0 of 1, and nothing is exchanged."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    @classmethod
    def current(cls) -> Ranks:
        """Return those of the process group that this process has joined, if it has."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def first(self) -> bool:
        """Whether this is the rank that logs and writes."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    def rows(self, whole: int) -> Rows:
        """Return this rank's rows of a batch, which is cut into as many runs of neighbours as there are ranks.

        Where there are fewer rows than ranks, perhaps one that does not count: a rank without samples would hold up the
        others, which wait for its gradient.

        >>> [Ranks(rank, 3).rows(2) for rank in range(2)]
        [Rows(start=0, stop=1, whole=2, counted=0), Rows(start=0, stop=1, whole=2, counted=1)]
        """
        start, stop = (place * whole // self.count for place in (self.rank, self.rank + 1))
        if start < stop:
            return Rows(start, stop, whole, stop - start)
        borrowed = min(start, whole - 1)
        return Rows(borrowed, borrowed + 1, whole, 0)

    def weight(self, part: Part) -> float:
        """Return the factor on a part's mean loss that makes the mean over the ranks that of the whole batch."""
        return part.counted * self.count / part.whole

    def parts(self, batches: Any, epoch: int | None = None) -> Iterator[Part]:
        """Give this rank's part of each batch, of an epoch where the batches have epochs.

        Batches that know how to be cut read nothing else; others must be the same on every rank.
        """
        if self.several and hasattr(batches, "parts"):
            yield from batches.parts(self, epoch)
            return
        for x, y in map(as_pair, batches.epoch(epoch) if epoch and hasattr(batches, "epoch") else batches):
            rows = self.rows(len(y))
            cut = (rows_of(x, rows.slice), y[rows.slice]) if self.several else (x, y)
            yield Part(*cut, rows.counted, rows.whole)

    def sum(self, values: list[float]) -> list[float]:
        """Return the sum of each number over the ranks: the same bits on all of them."""
        if not self.several:
            return values
        sums = torch.tensor(values, dtype=torch.float64, device=_communication_device())
        dist.all_reduce(sums)
        return sums.tolist()

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


def started_ranks() -> int:
    """Return how many ranks torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


@contextmanager
def joined() -> Iterator[Ranks]:
    """Be one of the ranks that torchrun has started, for as long as the block lasts: gloo on CPUs, NCCL on GPUs.

    Where another rank has ended, the error says so.
    """
    global _of_torchrun
    ours = started_ranks() > 1 and not dist.is_initialized()
    if ours:
        _of_torchrun = True
        _explain_termination()
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        from torch.distributed.rendezvous import rendezvous  # not in every build of torch

        store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
        store = fresh_store(store, rank, count)
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
    try:
        yield Ranks.current()
    except RuntimeError as error:
        if _is_lost_rank(error):
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


def fresh_store(store: Store, rank: int, count: int) -> Store:
    """Return a part of torchrun's store that no earlier attempt has written to.

    torchrun keeps one store for all its restarts, and a restarted rank may find the address of one that has been killed
    (PyTorch's issue 135712). So rank 0 makes up a name that is new and tells each rank that asks; whoever asked in an
    earlier attempt is answered too, and never hears it.
    """
    if rank == 0:
        name, silent = uuid.uuid4().hex, set(range(1, count))
        until = time.monotonic() + PATIENCE.total_seconds()
        while silent:
            silent = {other for other in silent if not _answered(store, other, name)}
            if silent and time.monotonic() > until:
                raise RuntimeError(f"ranks {sorted(silent)} have not come within {PATIENCE}; start the run again")
            time.sleep(0.02 if silent else 0)
    else:
        question = uuid.uuid4().hex
        store.set(f"esam/question/{rank}", question)
        name = store.get(f"esam/answer/{question}").decode()  # waits for it
        store.set(f"esam/heard/{name}/{rank}", "")
    from torch.distributed.distributed_c10d import PrefixStore

    return PrefixStore(f"esam/attempt/{name}", store)


def _answered(store: Store, rank: int, name: str) -> bool:
    """Answer a rank's last question; tell whether it has heard."""
    if store.check([f"esam/heard/{name}/{rank}"]):
        return True
    if store.check([f"esam/question/{rank}"]):
        question = store.get(f"esam/question/{rank}").decode()
        store.set(f"esam/answer/{question}", name)
    return False


def local_rank() -> int:
    """Return which of this machine's ranks this is, and so which of its GPUs it has."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _communication_device() -> torch.device:
    only_gpus = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if only_gpus else torch.device("cpu")


def _is_lost_rank(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "by peer" in str(error)


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
