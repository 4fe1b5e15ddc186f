"""How does a loop with Accelerate take a sharpness-aware step? By ``backward`` in place of ``accelerator.backward``.

```python
for x, y in loader:
    with accelerator.accumulate(model):
        loss = backward(accelerator, optimizer, lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none"))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
```
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from esam.optim import SharpnessAware
from esam.optim.batch import Closure
from esam.optim.buffers import kept_buffers

_OWN_BACKWARD = ("DEEPSPEED", "MEGATRON_LM", "XLA")


def backward(accelerator: Any, optimizer: Any, closure: Closure, *, batch_size: int | None = None) -> Tensor:
    """Take the passes of one micro-batch and return its mean loss, detached; ``.grad`` is final with the last of them.

    Clip by ``accelerator.clip_grad_norm_`` where ``accelerator.sync_gradients``, and call ``optimizer.step()`` as ever.

    Args:
        accelerator: An ``accelerate.Accelerator``; it knows which micro-batch is the last, and the scaler for fp16.
        optimizer: One of esam's, prepared by the accelerator.
        closure: As for ``accumulate``: it runs the prepared model.
        batch_size: As for ``accumulate``: how many samples the micro-batch has.
    """
    ours = sharpness_aware(optimizer)
    if ours is None:
        raise ValueError(
            f"backward() wants one of esam's optimizers, got {type(optimizer).__name__}; build it before "
            "accelerator.prepare: esam.SAM(torch.optim.SGD(...), model)"
        )
    kind = accelerator.distributed_type.name
    if kind in _OWN_BACKWARD:
        raise ValueError(f"{kind} runs backward and step by itself: there is no place for a second pass; use DDP")
    if accelerator.num_processes > 1 and not isinstance(ours.model, DistributedDataParallel):
        _follow(ours, closure)
    losses = ours.accumulate(closure, accelerator.scaler, batch_size=batch_size)
    if accelerator.sync_gradients:
        ours.gradient(accelerator.scaler)
    return losses.mean()


def sharpness_aware(optimizer: Any) -> SharpnessAware | None:
    """Return our optimizer out of what an accelerator wraps around it; None if there is none."""
    while not isinstance(optimizer, SharpnessAware):
        optimizer = getattr(optimizer, "optimizer", None)
        if optimizer is None:
            return None
    return optimizer


def _follow(optimizer: SharpnessAware, closure: Closure) -> None:
    """Learn what the accelerator has wrapped the model into since the optimizer was built: one forward pass, once."""
    wrappers: list[Any] = []

    def look(*_: Any) -> None:
        wrappers.append(DistributedDataParallel._active_ddp_module)

    handle = optimizer.model.register_forward_pre_hook(look)
    devices = {p.get_device() for p in optimizer.model.parameters() if not p.is_cpu}
    try:
        with torch.no_grad(), torch.random.fork_rng(sorted(devices)), kept_buffers(optimizer.model):
            closure(slice(None))
    finally:
        handle.remove()
    if wrappers and wrappers[0] is not None:
        optimizer.model = wrappers[0]
