"""What makes sharpness-aware training worse here? Some steps are watched, and each finding comes with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from esam.optim import SharpnessAware
from esam.optim.monitor import Finding, StepMonitor

__all__ = ["Finding", "StepMonitor", "watching"]


@contextmanager
def watching(optimizer: SharpnessAware) -> Iterator[StepMonitor]:
    """Watch the steps that an optimizer takes inside this block; the steps are the same as without."""
    monitor = StepMonitor(optimizer)
    before, optimizer.monitor = optimizer.monitor, monitor
    try:
        yield monitor
    finally:
        optimizer.monitor = before
