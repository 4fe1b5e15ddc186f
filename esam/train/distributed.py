"""Which rank of a run is this process, what is its part of a batch and of the model, and what do ranks exchange?"""

from __future__ import annotations

import copy
import io
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .samples import Batch, Inputs, as_pair, rows_of, unwrapped

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


@dataclass(frozen=True)
class Share:
    """The place of a rank among all: every batch is cut into as many runs of neighbours, alike to a sample in size."""

    rank: int = 0
    count: int = 1

    def rows(self, whole: int) -> Rows:
        """Return this rank's rows of a batch; where there are fewer rows than ranks, perhaps one that does not count.

        A rank without samples would hold up the others, which wait for its gradient.

        >>> [Share(rank, 3).rows(2) for rank in range(2)]
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

    def parts(self, batches: Iterable[Batch]) -> Iterator[Part]:
        """Cut whole batches, which every rank must see alike."""
        for x, y in map(as_pair, batches):
            if self.count == 1:
                yield Part(x, y, len(y), len(y))
                continue
            rows = self.rows(len(y))
            yield Part(rows_of(x, rows.slice), y[rows.slice], rows.counted, rows.whole)


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
        self.share = Share(rank, count)

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

    def state_from_first(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return rank 0's state of tensors and plain values; nothing in it can run code."""
        if not self.several:
            return state
        buffer = io.BytesIO()
        torch.save(state if self.first else None, buffer)
        size = int(self.from_first(buffer.tell()))
        data = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8) if self.first else torch.empty(0).byte()
        data = data.clone().resize_(size).to(_communication_device())
        dist.broadcast(data, src=0)
        found: dict[str, Any] | None = torch.load(io.BytesIO(data.cpu().numpy().tobytes()), weights_only=True)
        return state if self.first else found

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


STRATEGIES = ("ddp", "fsdp")
Whole = Callable[[], nn.Module]
"""Returns the model as one process has it, with the weights of now; every rank must ask, and rank 0 gets them."""


def spread(model: nn.Module, strategy: str, ranks: Ranks) -> tuple[nn.Module, Whole]:
    """Return what trains on this rank, and the way back to a whole model; alone, both are the model itself.

    ``ddp`` keeps whole weights on every rank, ``fsdp`` a part of each weight (``fully_shard``).
    """
    if not ranks.several:
        return model, lambda: model
    if strategy == "ddp":
        device = next(model.parameters()).device
        places = None if device.type == "cpu" else [device]
        return DistributedDataParallel(model, device_ids=places, gradient_as_bucket_view=True), lambda: model
    from torch.distributed.fsdp import fully_shard

    twin = copy.deepcopy(model).cpu()
    model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for block in blocks_of(model):
        fully_shard(block)
    sharded: nn.Module = fully_shard(model)  # type: ignore[assignment]  # the model itself, of a class made for it

    def whole() -> nn.Module:
        state = whole_state(sharded, keep=ranks.first)
        if ranks.first:
            twin.load_state_dict(state)
        return twin

    return sharded, whole


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the parts of a model that repeat, each with layers of its own: blocks in an nn.Sequential or ModuleList.

    Where blocks hold blocks, the inner ones.

    >>> block = lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> len(blocks_of(nn.Sequential(nn.Linear(2, 2), nn.Sequential(block(), block(), block()))))
    3
    """
    found: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, (nn.Sequential, nn.ModuleList)):
            kinds = [type(child) for child in module]
            repeated = [m for m in module if kinds.count(type(m)) > 1 and any(True for _ in m.children())]
            found += [m for m in repeated if any(True for _ in m.parameters())]
    return [block for block in found if not any(inner in found for inner in block.modules() if inner is not block)]


def whole_state(part: Any, *, keep: bool = True) -> dict[str, Any]:
    """Return the state of a model or an optimizer with every sharded tensor put together, on the CPU.

    Every rank must call it; one that does not ``keep`` the tensors gets an empty state.
    """
    state = _joined(unwrapped(part).state_dict() if isinstance(part, nn.Module) else part.state_dict())
    return state if keep else {}


def load_whole_state(part: Any, state: Mapping[str, Any]) -> None:
    """Load what ``whole_state`` returned, on as many ranks, and in as many shards, as there are now."""
    if isinstance(part, nn.Module):
        part = unwrapped(part)
        current = part.state_dict()
        part.load_state_dict({name: _like(value, current.get(name)) for name, value in state.items()})
    elif isinstance(part, torch.optim.Optimizer):
        weights = dict(enumerate(p for group in part.param_groups for p in group["params"]))
        by_parameter = {
            n: {key: _like(value, weights.get(n)) for key, value in values.items()}
            for n, values in state["state"].items()
        }
        part.load_state_dict({**state, "state": by_parameter})
    else:
        part.load_state_dict(state)


def share_buffers(model: nn.Module, ranks: Ranks) -> None:
    """Give every rank the buffers of rank 0: shards keep them apart, and running statistics come from their samples."""
    if ranks.several and not isinstance(model, DistributedDataParallel):  # which shares them in every step
        for buffer in model.buffers():
            if not hasattr(buffer, "full_tensor"):
                dist.broadcast(buffer, src=0)


def _joined(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.full_tensor().cpu() if hasattr(value, "full_tensor") else value
    if isinstance(value, Mapping):
        return {key: _joined(inner) for key, inner in value.items()}
    return [_joined(inner) for inner in value] if isinstance(value, list) else value


def _like(value: Any, current: Any) -> Any:
    """Return a whole tensor, sharded as the current one of the same shape is."""
    if not (isinstance(value, Tensor) and hasattr(current, "device_mesh") and value.shape == current.shape):
        return value
    from torch.distributed.tensor import distribute_tensor

    here = value.to(current.to_local().device)
    return distribute_tensor(here, current.device_mesh, current.placements, src_data_rank=None)
