"""What is timed?"""

from __future__ import annotations

from dataclasses import dataclass

from esam.train.config import MOST_THREADS


@dataclass(frozen=True)
class Bench:
    """A model, a batch, on what, how often."""

    model: str = "resnet18"
    """A name from `esam models`."""
    batch_size: int = 128
    """Samples in a step."""
    size: int = 32
    """Pixels a side."""
    classes: int = 10
    """Outputs of the model."""
    rounds: int = 10
    """Steps of each contender."""
    threads: int = 1
    """CPU threads."""
    device: str = "cpu"
    """cpu, cuda, ..."""

    def check(self) -> Bench:
        """Return what is to be timed if every number is in its range."""
        for name in ("batch_size", "size", "classes", "rounds", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.threads > MOST_THREADS:
            raise ValueError(f"threads must be at most {MOST_THREADS}, got {self.threads}")
        return self
