"""How is a model put on the ranks of a run, and put together again: for a file, or to look at it?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .inputs import unwrapped
from .ranks import Ranks

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
        own = part.state_dict()
        part.load_state_dict({name: _like(value, own.get(name)) for name, value in state.items()})
    elif isinstance(part, torch.optim.Optimizer):
        own = dict(enumerate(p for group in part.param_groups for p in group["params"]))
        by_parameter = {
            n: {key: _like(value, own.get(n)) for key, value in values.items()} for n, values in state["state"].items()
        }
        part.load_state_dict({**state, "state": by_parameter})
    else:
        part.load_state_dict(state)


def share_buffers(model: nn.Module, ranks: Ranks) -> None:
    """Give every rank the buffers of rank 0: shards keep them apart, and running statistics come from their samples."""
    if not isinstance(model, DistributedDataParallel):  # which shares them in every step
        ranks.share_tensors([buffer for buffer in model.buffers() if not hasattr(buffer, "full_tensor")])


def _joined(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.full_tensor().cpu() if hasattr(value, "full_tensor") else value
    if isinstance(value, Mapping):
        return {key: _joined(inner) for key, inner in value.items()}
    return [_joined(inner) for inner in value] if isinstance(value, list) else value


def _like(value: Any, own: Any) -> Any:
    """Return a whole tensor, sharded as one's own of the same shape is."""
    if not (isinstance(value, Tensor) and hasattr(own, "device_mesh") and value.shape == own.shape):
        return value
    from torch.distributed.tensor import distribute_tensor

    here = value.to(own.to_local().device)
    return distribute_tensor(here, own.device_mesh, own.placements, src_data_rank=None)
