"""ESAM with a gamma that follows training: everything trains at first, and SDS begins as the loss falls."""

from __future__ import annotations

import math
from typing import Any, final

from torch import Tensor

from ..ranking import Candidates
from .esam import ESAM


@final
class FollowingESAM(ESAM):
    """Step like ESAM, keeping the share gamma + (1 - gamma) L / L_0 of each batch.

    L is the running mean of the loss and L_0 where it began. As long as the net has not learnt, the samples whose loss
    rises most are the steepest ones, and training on them alone stalls.

    Args:
        base, model, rho, beta, gamma, ranking, mask, norm, m, perturbation, seed: As for ESAM; gamma is where it ends.
    """

    DECAY = 0.98
    """Of the running mean: some fifty steps."""

    _first = _mean = -1.0

    def select(self, batch: Candidates) -> Tensor | None:
        """Keep as many as training allows; the loss of this step counts from the next on, alike on every rank."""
        self._now = float(batch.losses.mean())
        return super().select(batch)

    def kept_share(self) -> float:
        """Return the share for this step."""
        if self._first <= 0:
            return 1.0
        return self.gamma + (1 - self.gamma) * min(1.0, max(0.0, self._mean / self._first))

    def after_step(self) -> None:
        """Move the running mean."""
        loss = self.parallel.mean_number(max(0.0, self._now)) if self.gamma < 1 else math.nan
        if math.isfinite(loss):
            self._first = loss if self._first < 0 else self._first
            self._mean = loss if self._mean < 0 else self.DECAY * self._mean + (1 - self.DECAY) * loss

    def memory(self) -> dict[str, Any]:
        """Return ESAM's, the first loss and the running mean."""
        return {**super().memory(), "first": self._first, "mean": self._mean}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        super().load_memory(memory)
        self._first, self._mean = memory.get("first", -1.0), memory.get("mean", -1.0)

    _now = 0.0
