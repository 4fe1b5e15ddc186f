"""How does a loop with Accelerate take a sharpness-aware step? By ``backward`` in place of ``accelerator.backward``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .common import prepared, take_passes

_OWN_BACKWARD = ("DEEPSPEED", "MEGATRON_LM", "XLA")


def backward(accelerator: Any, optimizer: Any, loss_of: Callable[..., Any], *batch: Any, **options: Any) -> Tensor:
    """Take the passes of one micro-batch and return its mean loss, detached; ``.grad`` is final with the last of them.

    Clip by ``accelerator.clip_grad_norm_`` where ``accelerator.sync_gradients``, and call ``optimizer.step()`` as ever.

    Args:
        accelerator: An ``accelerate.Accelerator``; it knows which micro-batch is the last, and the scaler for fp16.
        optimizer: One of esam's, prepared by the accelerator.
        loss_of, batch, options: As for ``accumulate``; the function runs the prepared model.
    """
    ours = prepared(optimizer, "accelerator.prepare", accelerator.distributed_type.name, _OWN_BACKWARD)
    if ours.has_gradient and not getattr(optimizer, "step_was_skipped", False):
        raise ValueError(
            "a second backward() before optimizer.step(): the first one's batch would be dropped; to accumulate, let "
            "the accelerator count: Accelerator(gradient_accumulation_steps=n) and `with accelerator.accumulate(model)`"
        )
    scaler, last = accelerator.scaler, accelerator.sync_gradients
    return take_passes(ours, loss_of, batch, last=last, scaler=scaler, **options)
