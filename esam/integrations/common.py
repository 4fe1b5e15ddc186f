"""What do the adapters share? Finding our optimizer, and the model as a trainer has wrapped it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from esam.optim import SharpnessAware
from esam.optim.buffers import kept_buffers


def sharpness_aware(optimizer: Any) -> SharpnessAware | None:
    """Return our optimizer out of what a trainer wraps around it; None if there is none."""
    while not isinstance(optimizer, SharpnessAware) or "base" not in vars(optimizer):  # Fabric's imitates our class
        optimizer = getattr(optimizer, "optimizer", None)
        if optimizer is None:
            return None
    return optimizer


def follow_replicas(optimizer: SharpnessAware, run: Callable[[], Any]) -> None:
    """Learn what a trainer has wrapped the model into since the optimizer was built: one forward pass, once."""
    if isinstance(optimizer.model, DistributedDataParallel):
        return
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
