"""What do the adapters share? Finding our optimizer, the model as a trainer has wrapped it, a micro-batch's passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from esam.optim import SharpnessAware
from esam.optim.buffers import kept_buffers

_FOLLOWED: WeakSet[SharpnessAware] = WeakSet()
"""Optimizers whose model has been looked for behind the trainer's wrappers."""


def sharpness_aware(optimizer: Any) -> SharpnessAware | None:
    """Return our optimizer out of what a trainer wraps around it; None if there is none."""
    while not isinstance(optimizer, SharpnessAware) or "base" not in vars(optimizer):  # Fabric's imitates our class
        optimizer = getattr(optimizer, "optimizer", None)
        if optimizer is None:
            return None
    return optimizer


def prepared(optimizer: Any, prepare: str, kind: str, own_backward: tuple[str, ...]) -> SharpnessAware:
    """Return our optimizer, or say what ``backward`` cannot work with."""
    ours = sharpness_aware(optimizer)
    if ours is None:
        raise ValueError(
            f"backward() wants one of esam's optimizers, got {type(optimizer).__name__}; build it before {prepare}: "
            "esam.SAM(torch.optim.SGD(...), model)"
        )
    if kind in own_backward:
        raise ValueError(f"{kind} runs backward by itself: there is no place for a second pass; use DDP or one device")
    return ours


def take_passes(
    optimizer: SharpnessAware, loss_of: Callable[..., Any], batch: tuple[Any, ...], *, last: bool, **options: Any
) -> Tensor:
    """Take the passes of one micro-batch, and with the last the gradient of the step; return its mean loss."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _follow_replicas(optimizer, lambda: loss_of(*batch) if batch else loss_of(slice(None)))
    losses = optimizer.accumulate(loss_of, *batch, **options)
    if last:
        optimizer.gradient()
    mean: Tensor = (losses[0] if isinstance(losses, tuple) else losses).mean()
    return mean


def _follow_replicas(optimizer: SharpnessAware, run: Callable[[], Any]) -> None:
    """Learn what a trainer has wrapped the model into since the optimizer was built: one forward pass, once."""
    if isinstance(optimizer.model, DistributedDataParallel) or optimizer in _FOLLOWED:
        return
    _FOLLOWED.add(optimizer)
    wrappers: list[Any] = []

    def note(*_: Any) -> None:
        wrappers.append(DistributedDataParallel._active_ddp_module)

    handle = optimizer.model.register_forward_pre_hook(note)
    devices = {p.get_device() for p in optimizer.model.parameters() if not p.is_cpu}
    try:
        with torch.no_grad(), torch.random.fork_rng(sorted(devices)), kept_buffers(optimizer.model):
            run()
    finally:
        handle.remove()
    if wrappers and wrappers[0] is not None:
        optimizer.model = wrappers[0]
