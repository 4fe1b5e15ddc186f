"""How is a model spread over ranks: not at all, in replicas (DistributedDataParallel), or in shards (fully_shard)?"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .ascent import tensor_norms, whole_norm
from .graph import refuse_reentrant_checkpoints

Gradients = dict[int, Tensor]
"""Gradients by the tensors' places among the optimizer's parameters; one that a pass did not reach is missing."""


class Alone:
    """One process: nothing to exchange."""

    rank = 0
    own_eps = True
    """Whether each rank perturbs by its own gradient; False: all by the mean of theirs."""
    replicated = False
    sharded = False
    _shards: Sequence[Any] = ()  # what fully_shard made of the model and its parts, the model first
    _groups: Sequence[Any] = ()  # process groups that together join all ranks
    _shard_groups: Sequence[Any] = ()  # those of them that join the parts of a tensor
    _device = torch.device("cpu")

    def unsynchronised(self) -> AbstractContextManager[Any]:
        """Keep the gradients of a pass on this rank; its forward belongs inside too."""
        return nullcontext()

    def gradients(self, loss: Tensor, inputs: Sequence[Any]) -> list[Tensor | None]:
        """Return the gradient at each input, None where the loss does not depend on it; ``.grad`` is not touched."""
        try:
            found: list[Tensor | None] = list(torch.autograd.grad(loss, inputs, allow_unused=True))
        except RuntimeError:
            refuse_reentrant_checkpoints(loss)
            raise
        if any(gradient is None for gradient in found):
            refuse_reentrant_checkpoints(loss)
        return found

    def mean(self, gradients: Gradients, parameters: Sequence[Tensor]) -> Gradients:
        """Return the gradients averaged over the ranks; one that is missing on a rank counts as zero there."""
        return gradients

    def mean_squares(self, norms: Sequence[float | None]) -> list[float | None]:
        """Return the root mean squares of these numbers over the ranks that have them, finite, one by one."""
        known = [norm if norm is not None and math.isfinite(norm) else None for norm in norms]
        values = [n * n if n else 0.0 for n in known] + [float(n is not None) for n in known]
        sums = self._sum(values, self._groups if self.own_eps else ())  # one eps for all: they are the same
        return [math.sqrt(sums[i] / count) if count else None for i, count in enumerate(sums[len(known) :])]

    def mean_number(self, value: float) -> float:
        """Return the mean of a number over the ranks: the same bits on all of them."""
        total, count = self._sum([value, 1.0], self._groups)
        return total / count

    def union(self, places: Container[int], count: int) -> set[int]:
        """Return those of the places 0 ... count - 1 that are among ``places`` on any rank."""
        return {n for n, r in enumerate(self._sum([float(n in places) for n in range(count)], self._groups)) if r}

    def gathered(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, joined; a rank may have more than another."""
        for group in self._groups:
            counts = torch.zeros(group.size(), dtype=torch.int64, device=self._device)
            counts[group.rank()] = len(rows)
            torch.distributed.all_reduce(counts, group=group)
            most = int(counts.max())
            padded = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
            found = [torch.empty_like(padded) for _ in range(group.size())]
            torch.distributed.all_gather(found, padded, group=group)
            rows = torch.cat([one[:count] for one, count in zip(found, counts.tolist(), strict=True)])
        return rows

    def share(self, generator: torch.Generator) -> None:
        """Give every rank the generator of rank 0."""
        for group in self._groups:
            state = generator.get_state().to(self._device)
            torch.distributed.broadcast(state, torch.distributed.get_global_rank(group, 0), group=group)
            generator.set_state(state.cpu())

    def share_buffers(self) -> None:
        """Give every rank the buffers of rank 0, where the user wants that."""

    def local(self, tensors: Sequence[Any]) -> list[Tensor]:
        """Return the part of each tensor that lies on this rank; writing to it changes the tensor."""
        return [tensor.to_local() for tensor in tensors] if self.sharded else list(tensors)

    def moved(self) -> None:
        """Learn that the weights have moved: copies of them, cast or gathered, are those of before."""
        torch.clear_autocast_cache()
        for module in self._shards:
            for p in module.parameters():
                if not hasattr(p, "device_mesh"):
                    p.grad = None  # of a backward that an error broke off: the next would add to it
            module.reshard()

    def broken_off(self) -> None:
        """Learn that an error broke off a pass: ``reshard`` leaves what a forward is using, and this does not."""
        self.moved()
        for model in self._shards[:1]:
            getattr(model, "reset_iter_state", model.state_dict)()  # older torch: a hook of state_dict reshards

    def norms(self, tensors: Sequence[Tensor]) -> list[float]:
        """Return the l2 norm of each tensor, given by its local part."""
        return [math.sqrt(s) for s in self._sum([n * n for n in tensor_norms(tensors)], self._shard_groups)]

    def norm(self, tensors: Sequence[Tensor]) -> float:
        """Return the l2 norm of all of them together, given by their local parts."""
        return math.sqrt(self._sum([n * n for n in (whole_norm(tensors),)], self._shard_groups)[0])

    def dot(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        """Return the inner product of two lists of tensors, given by their local parts."""
        products = [(x * y.conj()).real.sum(dtype=torch.float64) for x, y in zip(a, b, strict=True)]
        total = sum(torch.stack([p.to(products[0].device) for p in products]).tolist()) if products else 0.0
        return self._sum([total], self._shard_groups)[0]

    def _sum(self, values: list[float], groups: Sequence[Any]) -> list[float]:
        """Return the sum of each number over the ranks of these groups: the same bits on all of them."""
        if not groups:
            return values
        sums = torch.tensor(values, dtype=torch.float64, device=self._device)
        for group in groups:
            torch.distributed.all_reduce(sums, group=group)
        return sums.tolist()


class Replicas(Alone):
    """DistributedDataParallel: whole weights on every rank, gradients exchanged in the last backward of a step."""

    replicated = True

    def __init__(self, model: Any, perturbation: str) -> None:
        self._model, self._groups, self._device = model, [model.process_group], next(model.parameters()).device
        self.rank, self.own_eps = torch.distributed.get_rank(model.process_group), perturbation == "rank"

    def unsynchronised(self) -> AbstractContextManager[Any]:
        """Keep gradients on this rank: DistributedDataParallel counts forward passes too."""
        return self._model.no_sync()  # type: ignore[no-any-return]

    def mean(self, gradients: Gradients, parameters: Sequence[Tensor]) -> Gradients:
        """Return the mean of each gradient that any rank has; one exchange for them, one to learn which they are."""
        places = sorted(self.union(gradients, len(parameters)))
        if not places:
            return {}
        flat = torch.cat([gradients.get(n, torch.zeros_like(parameters[n])).flatten() for n in places])
        torch.distributed.all_reduce(flat, group=self._model.process_group)
        parts = torch.split(flat / self._model.process_group.size(), [parameters[n].numel() for n in places])
        return {n: part.view_as(parameters[n]) for n, part in zip(places, parts, strict=True)}

    def share_buffers(self) -> None:
        """Do what DistributedDataParallel does where a forward exchanges gradients; not every step has such a one."""
        if self._model.broadcast_buffers and self._model.modules_buffers:
            self._model._sync_buffers()


class Shards(Alone):
    """fully_shard: a part of every weight on every rank; each backward exchanges gradients, so one eps serves all."""

    def __init__(self, shards: list[Any]) -> None:
        self._shards, self._parameters = shards, list(shards[0].parameters())
        mesh, placements = self._parameters[0].device_mesh, self._parameters[0].placements
        self._groups, self._device = mesh.get_all_groups(), self._parameters[0].to_local().device
        self._shard_groups = [mesh.get_group(d) for d, place in enumerate(placements) if place.is_shard()]
        self.rank, self.own_eps, self.sharded = torch.distributed.get_rank(), False, True

    def gradients(self, loss: Tensor, inputs: Sequence[Any]) -> list[Tensor | None]:
        """Return gradients by a whole backward: what ``fully_shard`` exchanges, it leaves in ``.grad``."""
        kept = [p.grad for p in self._parameters]
        for p in self._parameters:
            p.grad = None
        for tensor in inputs:
            tensor.retain_grad()
        try:
            loss.backward()  # type: ignore[no-untyped-call]
            found = [tensor.grad for tensor in inputs]
        finally:
            for p, grad in zip(self._parameters, kept, strict=True):
                p.grad = grad
        return [g.to_local() if hasattr(g, "to_local") else g for g in found]


def parallel_of(model: nn.Module, perturbation: str) -> Alone:
    """Return how a model is spread over ranks, or say why a step cannot be taken on it."""
    model = getattr(model, "_orig_mod", model)  # inside torch.compile
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return Replicas(model, perturbation)
    if _of_kind(model, "DistributedDataParallel"):
        raise ValueError("a part of the model is in DistributedDataParallel; wrap the whole model, and pass that")
    if _of_kind(model, "FullyShardedDataParallel"):
        raise ValueError("FullyShardedDataParallel hides the parameters; shard the model with fully_shard (FSDP2)")
    shards = _of_kind(model, "FSDPModule")
    for module in shards:
        module.reshard()  # a forward pass alone leaves the whole weights in the place of the shards
    sharded: list[Any] = [p for p in model.parameters() if hasattr(p, "device_mesh")]
    if not sharded:
        return Alone()
    layouts = {(p.device_mesh, *(place.is_shard() for place in p.placements)) for p in sharded}
    if len(layouts) > 1 or len(sharded) < len(list(model.parameters())) or model not in shards:
        raise ValueError("the model is sharded in part, or in several ways; call fully_shard on the whole model too")
    return Shards(shards)


def _of_kind(model: nn.Module, name: str) -> list[Any]:
    return [module for module in model.modules() if any(kind.__name__ == name for kind in type(module).__mro__)]


def refusing_hidden_replicas(model: nn.Module, parallel: Alone) -> AbstractContextManager[Any]:
    """Refuse, inside this block, a forward pass by a DistributedDataParallel that the optimizer was not given."""

    def refuse(module: nn.Module, inputs: Any) -> None:
        if nn.parallel.DistributedDataParallel._active_ddp_module is not None:
            raise ValueError("DistributedDataParallel runs the model: pass it to the optimizer, not the bare model")

    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return model.register_forward_pre_hook(refuse) if distributed and type(parallel) is Alone else nullcontext()
