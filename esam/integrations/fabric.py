"""How does a loop with Fabric take a sharpness-aware step? By ``backward`` in place of ``fabric.backward``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

try:
    from lightning.fabric import wrappers
except ImportError as error:
    raise ImportError("esam.integrations.fabric needs lightning: pip install torch-esam[lightning]") from error

from .common import prepared, take_passes

_OWN_BACKWARD = ("DeepSpeedStrategy", "XLAStrategy", "XLAFSDPStrategy")


def backward(
    fabric: Any, optimizer: Any, loss_of: Callable[..., Any], *batch: Any, last: bool = True, **options: Any
) -> Tensor:
    """Take the passes of one micro-batch and return its mean loss, detached; ``.grad`` is final with the last of them.

    Clip by ``fabric.clip_gradients``, and call ``optimizer.step()`` as ever.

    Args:
        fabric: A ``lightning.Fabric``; it has the precision and the strategy.
        optimizer: One of esam's, set up by Fabric.
        loss_of, batch, options: As for ``accumulate``; the function runs the model that Fabric set up.
        last: Whether this is the last micro-batch of the step; False where a loop accumulates.
    """
    ours = prepared(optimizer, "fabric.setup", type(fabric.strategy).__name__, _OWN_BACKWARD)
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if ours.has_gradient and scaler is None:  # which may have skipped the step
        raise ValueError(
            "a second backward() before optimizer.step(): the first one's batch would be dropped; to accumulate, pass "
            "last=False for all but the last micro-batch of a step"
        )
    wrappers._in_fabric_backward = True  # its modules refuse any backward but fabric.backward, which takes one pass
    try:
        return take_passes(ours, loss_of, batch, last=last, scaler=scaler, **options)
    finally:
        wrappers._in_fabric_backward = False
