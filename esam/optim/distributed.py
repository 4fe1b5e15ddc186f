"""How is a model spread over ranks: not at all, in replicas (DistributedDataParallel), or in shards (fully_shard)?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .gradients import Gradients

_NOTHING = nullcontext()
_DISTRIBUTED = torch.distributed.is_available()


class SingleProcess:
    """One process: nothing to exchange."""

    rank = 0
    own_eps = True
    """Whether each rank perturbs by its own gradient; False: all by the mean of theirs."""
    replicated = False
    sharded = False
    _shards: Sequence[Any] = ()  # what fully_shard made of the model and its parts, the model first
    _groups: Sequence[Any] = ()  # process groups that together join all ranks
    _shard_groups: Sequence[Any] = ()  # those of them that join the parts of a tensor
    _graph_checked = False

    def no_sync(self) -> AbstractContextManager[Any] | None:
        """Return what keeps the gradients of a pass on this rank, if anything would not; its forward belongs inside."""
        return None

    def gradients(self, loss: Tensor, inputs: Sequence[Any]) -> list[Tensor | None]:
        """Return the gradient at each input, None where the loss does not depend on it; ``.grad`` is not touched."""
        try:
            gradients: list[Tensor | None] = list(torch.autograd.grad(loss, inputs, allow_unused=True))
        except RuntimeError:
            refuse_reentrant_checkpoints(loss)
            raise
        if not self._graph_checked and any(gradient is None for gradient in gradients):
            refuse_reentrant_checkpoints(loss)
            self._graph_checked = True
        return gradients

    def named(
        self, index: Sequence[int], tensors: Sequence[Tensor | None], sparse: set[int] | None = None
    ) -> Gradients:
        """Return what a pass gave for these of the optimizer's tensors, dense; one that it did not reach is left out.

        The index of each that was sparse goes into ``sparse``.
        """
        if not [t for t in tensors if t is None or t.is_sparse]:
            return self._gradients(index, tensors)
        dense = {n: t for n, t in zip(index, tensors, strict=True) if t is not None}
        for n in [n for n, t in dense.items() if t.is_sparse]:
            dense[n] = dense[n].to_dense()
            if sparse is not None:
                sparse.add(n)
        return self._gradients(dense, dense.values())

    def _gradients(self, index: Iterable[int], tensors: Iterable[Any]) -> Gradients:
        sum_over_shards = self._sum_over_shards if self._shard_groups else None
        return Gradients(index, tensors, shared=not self.replicated, sum_over_shards=sum_over_shards)

    def mean(self, gradients: Gradients, parameters: Sequence[Tensor]) -> Gradients:
        """Return the gradients averaged over the ranks; one that is missing on a rank counts as zero there."""
        return gradients

    def mean_of(self, value: Tensor) -> Tensor:
        """Return the mean of each number over the ranks: the same bits on all of them."""
        return self._sum(value, self._groups) / self._count() if self._groups else value

    def mean_squares(self, norms: Tensor) -> Tensor:
        """Return the root mean squares over the ranks that have them, one by one; -1 where none has, or none finite."""
        if not self._groups or not self.own_eps:  # one eps for all: they are the same
            return torch.where(norms.isfinite(), norms, -1.0)
        known = norms.isfinite() & (norms >= 0)
        sums = self._sum(torch.stack([torch.where(known, norms, 0.0).square(), known.to(norms)]), self._groups)
        return torch.where(sums[1] > 0, (sums[0] / sums[1].clamp(min=1)).sqrt(), -1.0)

    def share_generator(self, generator: torch.Generator) -> None:
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

    def invalidate_caches(self) -> None:
        """Drop copies of the weights, cast or gathered: the weights have moved."""
        torch.clear_autocast_cache()
        for module in self._shards:
            for p in module.parameters():
                if not hasattr(p, "device_mesh"):
                    p.grad = None  # of a backward that an error broke off: the next would add to it
            module.reshard()

    def reset_after_error(self) -> None:
        """Recover from a pass that an error broke off; ``reshard`` leaves what a forward is using as it is."""
        self.invalidate_caches()
        for model in self._shards[:1]:
            getattr(model, "reset_iter_state", model.state_dict)()  # older torch: a hook of state_dict reshards

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu")

    def _count(self) -> int:
        count = 1
        for group in self._groups:
            count *= group.size()
        return count

    def _sum_over_shards(self, value: Tensor) -> Tensor:
        return self._sum(value, self._shard_groups)

    def _sum(self, value: Tensor, groups: Sequence[Any]) -> Tensor:
        """Return the sum over the ranks of these groups: the same bits on all of them."""
        total = value.detach().to(self._device, torch.float32 if self._device.type == "mps" else torch.float64)
        total = total.clone() if total is value else total
        for group in groups:
            torch.distributed.all_reduce(total, group=group)
        return total.to(value)


class Replicas(SingleProcess):
    """DistributedDataParallel: whole weights on every rank, gradients exchanged in the last backward of a step."""

    replicated = True

    def __init__(self, model: Any, perturbation: str) -> None:
        self._model, self._groups = model, [model.process_group]
        self.rank, self.own_eps = torch.distributed.get_rank(model.process_group), perturbation == "rank"

    @property
    def _device(self) -> torch.device:
        return torch.device(next(self._model.parameters()).device)

    def no_sync(self) -> AbstractContextManager[Any]:
        """Keep gradients on this rank: DistributedDataParallel counts forward passes too."""
        return self._model.no_sync()  # type: ignore[no-any-return]

    def mean(self, gradients: Gradients, parameters: Sequence[Tensor]) -> Gradients:
        """Return the mean of each gradient that any rank has; one exchange for them, one to learn which they are."""
        if gradients.shared:
            return gradients
        here = dict(iter(gradients))
        index = self._on_any_rank(here, len(parameters))
        if not index:
            return gradients.like([], [], shared=True)
        flat = torch.cat([here[n].flatten() if n in here else torch.zeros_like(parameters[n]).flatten() for n in index])
        torch.distributed.all_reduce(flat, group=self._model.process_group)
        parts = torch.split(flat / self._model.process_group.size(), [parameters[n].numel() for n in index])
        means = [part.view_as(parameters[n]) for n, part in zip(index, parts, strict=True)]
        return gradients.like(index, means, shared=True)

    def share_buffers(self) -> None:
        """Do what DistributedDataParallel does where a forward exchanges gradients; not every step has such a one."""
        if self._model.broadcast_buffers and self._model.modules_buffers and not self._model._join_config.enable:
            self._model._sync_buffers()

    def _on_any_rank(self, index: Collection[int], count: int) -> list[int]:
        """Return which of the tensors 0 ... count - 1 have a gradient on some rank; it must be read back."""
        present = torch.tensor([float(n in index) for n in range(count)], device="cpu")
        return [n for n, ranks in enumerate(self._sum(present, self._groups).tolist()) if ranks]

    def _sum(self, value: Tensor, groups: Sequence[Any]) -> Tensor:
        if self._model._join_config.enable:
            raise ValueError(
                "this step exchanges numbers of its own, and DistributedDataParallel.join() keeps ranks that have run "
                "out of batches in step with DDP's exchanges only; give every rank as many batches (drop_last=True, "
                "DistributedSampler), or use SAM with accumulate left out"
            )
        return super()._sum(value, groups)


class Shards(SingleProcess):
    """fully_shard: a part of every weight on every rank; each backward exchanges gradients, so one eps serves all."""

    def __init__(self, shards: list[Any]) -> None:
        self._shards, self._parameters = shards, list(shards[0].parameters())
        mesh, placements = self._parameters[0].device_mesh, self._parameters[0].placements
        self._groups = mesh.get_all_groups()
        self._shard_groups = [mesh.get_group(d) for d, place in enumerate(placements) if place.is_shard()]
        self.rank, self.own_eps, self.sharded = torch.distributed.get_rank(), False, True

    @property
    def _device(self) -> torch.device:
        return torch.device(self._parameters[0].to_local().device)

    def gradients(self, loss: Tensor, inputs: Sequence[Any]) -> list[Tensor | None]:
        """Return gradients by a whole backward: what ``fully_shard`` exchanges, it leaves in ``.grad``."""
        return backward_into(lambda: loss.backward(), self._parameters, inputs)  # type: ignore[no-untyped-call]


def backward_into(backward: Any, parameters: Sequence[Any], inputs: Sequence[Any]) -> list[Tensor | None]:
    """Return the gradients that ``backward()`` leaves in ``.grad``; what the parameters' held before stays there."""
    kept = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    for tensor in inputs:
        tensor.retain_grad()
    try:
        backward()
        gradients = [tensor.grad for tensor in inputs]
    finally:
        for p, grad in zip(parameters, kept, strict=True):
            p.grad = grad
    return [g.to_local() if hasattr(g, "to_local") else g for g in gradients]


def ranks_of(model: nn.Module, perturbation: str) -> SingleProcess:
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
        return SingleProcess()
    layouts = {(p.device_mesh, *(place.is_shard() for place in p.placements)) for p in sharded}
    if len(layouts) > 1 or len(sharded) < len(list(model.parameters())) or model not in shards:
        raise ValueError("the model is sharded in part, or in several ways; call fully_shard on the whole model too")
    return Shards(shards)


def _of_kind(model: nn.Module, name: str) -> list[Any]:
    return [module for module in model.modules() if any(kind.__name__ == name for kind in type(module).__mro__)]


def refusing_hidden_replicas(model: nn.Module, ranks: SingleProcess) -> AbstractContextManager[Any]:
    """Refuse, inside this block, a forward pass by a DistributedDataParallel that the optimizer was not given."""

    def refuse(module: nn.Module, inputs: Any) -> None:
        if nn.parallel.DistributedDataParallel._active_ddp_module is not None:
            raise ValueError("DistributedDataParallel runs the model: pass it to the optimizer, not the bare model")

    if type(ranks) is not SingleProcess or not _DISTRIBUTED or not torch.distributed.is_initialized():
        return _NOTHING
    return model.register_forward_pre_hook(refuse)


def refuse_reentrant_checkpoints(loss: Tensor) -> None:
    """Refuse a graph that hides layers: torch leaves them out of the gradient, mostly in silence."""
    seen: set[Any] = {None}
    rest: list[Any] = [loss.grad_fn]
    while rest:
        node = rest.pop()
        if node in seen:
            continue
        seen.add(node)
        rest.extend(function for function, _ in node.next_functions)
        if node.name() == "CheckpointFunctionBackward":
            raise ValueError(
                "the model uses reentrant checkpoints, and the first pass cannot see the layers inside; use "
                "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
            )
