"""What is timed?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bench:
    """A model, a batch, on what, how often."""

    model: str = "resnet18"
    """A name from `esam models`."""
    batch_size: int = 128
    size: int = 32
    """Pixels a side."""
    classes: int = 10
    rounds: int = 10
    """Steps of each contender."""
    threads: int = 1
    device: str = "cpu"
