"""How is a model spread over ranks: not at all, in replicas (DistributedDataParallel), or in shards (fully_shard)?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .ascent import root_sum_of_squares, tensor_norms, whole_norm

Gradients = dict[int, Tensor]
"""Gradients by the tensors' places among the optimizer's parameters; one that a pass did not reach is missing."""


class Alone:
    """One process: nothing to exchange."""

    rank = 0
    own_eps = True
    """Whether each rank perturbs by its own gradient; False: all by the mean of theirs."""
    sharded = False

    def unsynchronised(self) -> AbstractContextManager[Any]:
        """Keep the gradients of a pass on this rank; its forward belongs inside too."""
        return nullcontext()

    def gradients(self, loss: Tensor, inputs: Sequence[Any]) -> list[Tensor | None]:
        """Return the gradient at each input, None where the loss does not depend on it; ``.grad`` is not touched."""
        try:
            return list(torch.autograd.grad(loss, inputs, allow_unused=True))
        except RuntimeError as error:
            if "Checkpointing is not compatible" not in str(error):
                raise
            raise ValueError(
                "the model uses reentrant checkpoints, and the first pass cannot see the layers inside; use "
                "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
            ) from error

    def mean(self, gradients: Gradients, parameters: Sequence[Tensor]) -> Gradients:
        """Return the gradients averaged over the ranks; one that is missing on a rank counts as zero there."""
        return gradients

    def mean_squares(self, norms: Sequence[float | None]) -> list[float | None]:
        """Return the root mean squares of these numbers over the ranks that have them, finite, one by one."""
        return [norm if norm is not None and math.isfinite(norm) else None for norm in norms]

    def share(self, generator: torch.Generator) -> None:
        """Give every rank the generator of rank 0."""

    def share_buffers(self) -> None:
        """Give every rank the buffers of rank 0, where the user wants that."""

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the part of each tensor that lies on this rank; writing to it changes the tensor."""
        return list(tensors)

    def whole(self, part: Tensor, parameter: Tensor) -> Tensor:
        """Return the tensor, spread as the parameter is, of which this rank has this part."""
        return part

    def moved(self) -> None:
        """Learn that the weights have moved."""
        torch.clear_autocast_cache()

    def norms(self, tensors: Sequence[Tensor]) -> list[float]:
        """Return the l2 norm of each tensor, given by its local part."""
        return tensor_norms(tensors)

    def norm(self, tensors: Sequence[Tensor]) -> float:
        """Return the l2 norm of all of them together, given by their local parts."""
        return whole_norm(tensors)

    def dot(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        """Return the inner product of two lists of tensors, given by their local parts."""
        products = [(x * y.conj()).real.sum(dtype=torch.float64) for x, y in zip(a, b, strict=True)]
        return sum(torch.stack([p.to(products[0].device) for p in products]).tolist()) if products else 0.0


class Replicas(Alone):
    """DistributedDataParallel: whole weights on every rank, gradients exchanged in the last backward of a step."""

    def __init__(self, model: nn.Module, perturbation: str) -> None:
        self._model: Any = model
        self._group: Any = self._model.process_group
        self.rank = torch.distributed.get_rank(self._group)
        self.own_eps = perturbation == "rank"

    def unsynchronised(self) -> AbstractContextManager[Any]:
        """Keep gradients on this rank: DistributedDataParallel counts forward passes too."""
        return self._model.no_sync()

    def mean(self, gradients: Gradients, parameters: Sequence[Tensor]) -> Gradients:
        """Return the gradients averaged over the ranks, by one exchange."""
        places = [n for n, p in enumerate(parameters) if p.requires_grad]
        whole = [gradients[n] if n in gradients else torch.zeros_like(parameters[n]) for n in places]
        flat = torch.cat([g.flatten() for g in whole])
        torch.distributed.all_reduce(flat, group=self._group)
        parts = torch.split(flat / torch.distributed.get_world_size(self._group), [g.numel() for g in whole])
        return {n: part.view_as(parameters[n]) for n, part in zip(places, parts, strict=True)}

    def mean_squares(self, norms: Sequence[float | None]) -> list[float | None]:
        """Return the root mean squares over the ranks, by one exchange."""
        known = [[0.0, 0.0] if norm is None else [norm**2, 1.0] for norm in super().mean_squares(norms)]
        sums = torch.tensor(known, dtype=torch.float64, device=next(self._model.parameters()).device)
        torch.distributed.all_reduce(sums, group=self._group)
        return [math.sqrt(square / count) if count else None for square, count in sums.tolist()]

    def share(self, generator: torch.Generator) -> None:
        """Give every rank the generator of rank 0."""
        _share(generator, next(self._model.parameters()).device, self._group)

    def share_buffers(self) -> None:
        """Do what DistributedDataParallel does at the start of a forward that exchanges gradients."""
        if self._model.will_sync_module_buffers():
            self._model._sync_buffers()


class Shards(Alone):
    """fully_shard: a part of every weight on every rank; each backward exchanges gradients, so one eps serves all."""

    own_eps = False
    sharded = True

    def __init__(self, model: nn.Module) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self._parameters = list(model.parameters())
        first: Any = self._parameters[0]
        self._mesh, placements = first.device_mesh, first.placements
        self._groups = [self._mesh.get_group(d) for d, place in enumerate(placements) if place.is_shard()]
        self.rank = torch.distributed.get_rank()

    def gradients(self, loss: Tensor, inputs: Sequence[Any]) -> list[Tensor | None]:
        """Return gradients by a whole backward: what ``fully_shard`` exchanges, it leaves in ``.grad``."""
        kept = [p.grad for p in self._parameters]
        for p in self._parameters:
            p.grad = None
        leaves = {id(p) for p in self._parameters}
        for tensor in inputs:
            if id(tensor) not in leaves:
                tensor.retain_grad()
        try:
            loss.backward()  # type: ignore[no-untyped-call]
            found = [tensor.grad for tensor in inputs]
        finally:
            for p, grad in zip(self._parameters, kept, strict=True):
                p.grad = grad
        return [None if gradient is None else self.local([gradient])[0] for gradient in found]

    def share(self, generator: torch.Generator) -> None:
        """Give every rank the generator of rank 0."""
        _share(generator, self.local(self._parameters[:1])[0].device, None)

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the shards of this rank."""
        return [t.to_local() if hasattr(t, "to_local") else t for t in tensors]

    def whole(self, part: Tensor, parameter: Tensor) -> Tensor:
        """Return a DTensor like the parameter."""
        from torch.distributed.tensor import DTensor

        like: Any = parameter
        return DTensor.from_local(part, like.device_mesh, like.placements, shape=like.size(), stride=like.stride())

    def moved(self) -> None:
        """Drop gathered copies of the weights: they are those of before."""
        super().moved()
        for module in self._modules:
            module.reshard()

    def norms(self, tensors: Sequence[Tensor]) -> list[float]:
        """Return the norm of each tensor: local squares, one exchange."""
        return [s**0.5 for s in self._sum([n * n for n in tensor_norms(tensors)])]

    def norm(self, tensors: Sequence[Tensor]) -> float:
        """Return the norm of all of them together."""
        return root_sum_of_squares(self.norms(tensors))

    def dot(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        """Return the inner product over all shards."""
        return self._sum([super().dot(a, b)])[0]

    def _sum(self, values: Sequence[float]) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64, device=self.local(self._parameters[:1])[0].device)
        for group in self._groups:
            torch.distributed.all_reduce(total, group=group)
        return total.tolist()  # type: ignore[no-any-return]


def parallel_of(model: nn.Module, perturbation: str) -> Alone:
    """Return how a model is spread over ranks, or say why a step cannot be taken on it."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return Alone()
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return Replicas(model, perturbation)
    kinds = {type(module).__name__ for module in model.modules()}
    if "FullyShardedDataParallel" in kinds:
        raise ValueError("FullyShardedDataParallel hides the parameters; shard the model with fully_shard (FSDP2)")
    spread = [hasattr(p, "device_mesh") for p in model.parameters()]
    if not any(spread):
        return Alone()
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule) or not all(spread):
        raise ValueError(
            "the model is sharded in part, and eps needs the norm of the whole gradient; call fully_shard on the whole "
            "model too, after its parts"
        )
    return Shards(model)


def refusing_hidden_replicas(model: nn.Module, parallel: Alone) -> AbstractContextManager[Any]:
    """Refuse, inside this block, a forward pass by a DistributedDataParallel that the optimizer was not given."""
    dist = torch.distributed
    if type(parallel) is not Alone or not dist.is_available() or not dist.is_initialized():
        return nullcontext()

    def refuse(module: nn.Module, inputs: Any) -> None:
        if nn.parallel.DistributedDataParallel._active_ddp_module is not None:
            raise ValueError(
                "the model runs inside DistributedDataParallel, but the optimizer was given the bare model; pass the "
                "wrapped one, or the ranks' weights drift apart"
            )

    return model.register_forward_pre_hook(refuse)


def _share(generator: torch.Generator, device: torch.device, group: Any) -> None:
    state = generator.get_state().to(device)
    torch.distributed.broadcast(state, group_src=0, group=group)
    generator.set_state(state.cpu())
