"""How does a loop with Accelerate take a sharpness-aware step? By ``backward`` in place of ``accelerator.backward``.

```python
def loss_of(x, y):
    return F.cross_entropy(model(x), y)


for x, y in loader:
    with accelerator.accumulate(model):
        loss = backward(accelerator, optimizer, loss_of, x, y)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from esam.optim.indexing import Dims

from .common import follow_replicas, sharpness_aware

_OWN_BACKWARD = ("DEEPSPEED", "MEGATRON_LM", "XLA")


def backward(
    accelerator: Any,
    optimizer: Any,
    loss_of: Callable[..., Any],
    *batch: Any,
    batch_size: int | None = None,
    dim: Dims = 0,
) -> Tensor:
    """Take the passes of one micro-batch and return its mean loss, detached; ``.grad`` is final with the last of them.

    Clip by ``accelerator.clip_grad_norm_`` where ``accelerator.sync_gradients``, and call ``optimizer.step()`` as ever.

    Args:
        accelerator: An ``accelerate.Accelerator``; it knows which micro-batch is the last, and the scaler for fp16.
        optimizer: One of esam's, prepared by the accelerator.
        loss_of, batch, batch_size, dim: As for ``accumulate``; the function runs the prepared model.
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
    if ours.has_gradient and not getattr(optimizer, "step_was_skipped", False):
        raise ValueError(
            "a second backward() before optimizer.step(): the first one's batch would be dropped; to accumulate, let "
            "the accelerator count: Accelerator(gradient_accumulation_steps=n) and `with accelerator.accumulate(model)`"
        )
    if accelerator.num_processes > 1:
        follow_replicas(ours, lambda: loss_of(*batch) if batch else loss_of(slice(None)))
    losses = ours.accumulate(loss_of, *batch, scaler=accelerator.scaler, batch_size=batch_size, dim=dim)
    if accelerator.sync_gradients:
        ours.gradient()
    mean: Tensor = (losses[0] if isinstance(losses, tuple) else losses).mean()
    return mean
