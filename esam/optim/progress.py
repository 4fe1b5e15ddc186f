"""How far has training come? By how much of its loss is gone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

DECAY = 0.95
"""Of the running mean: some twenty steps."""


@dataclass(frozen=True)
class Progress:
    """The running mean of the loss, beside the highest that it has been; None before the first step."""

    mean: float | None = None
    highest: float | None = None

    def after(self, loss: float) -> Progress:
        """Return the progress after one more step; a loss that is not finite tells nothing."""
        if not math.isfinite(loss):
            return self
        mean = loss if self.mean is None else DECAY * self.mean + (1 - DECAY) * loss
        return Progress(mean, mean if self.highest is None else max(self.highest, mean))

    @property
    def share(self) -> float:
        """How much of the loss is gone: 0 where nothing is learnt yet, 1 at a loss of 0 or where losses are negative.

        >>> Progress().after(2.0).share
        0.0
        >>> round(Progress().after(2.0).after(0.0).share, 3)
        0.05
        """
        if self.mean is None or self.highest is None:
            return 0.0
        return 1 - max(0.0, self.mean) / self.highest if self.highest > 0 else 1.0

    def memory(self) -> dict[str, float | None]:
        """Return what a resumed run needs."""
        return asdict(self)
