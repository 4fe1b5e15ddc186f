"""AE-SAM (Jiang et al., ICLR 2023): SAM where the gradient is large for its time."""

from __future__ import annotations

import math
from typing import Any, Literal, final

from torch import nn
from torch.optim import Optimizer

from ..batch import Batch
from ..checks import checked_count, checked_number, checked_share
from ..perturb import l2_ascent
from ..step import SharpnessAware


@final
class AESAM(SharpnessAware):
    """Take SAM's step where the squared gradient norm is high for this stage of training, else the base's.

    Args:
        base, model, rho, perturbation, loss, seed: As for SAM.
        threshold: How high: above mean + c * deviation, both running; c falls from ``threshold`` to minus that in the
            course of training, so that SAM's steps become more. The paper's 1.
        decay: Of the running mean and variance; the paper's 0.9.
        total_steps: How many steps training has; None: c is 0.
    """

    remembered = ("mean", "variance")

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        threshold: float = 1.0,
        decay: float = 0.9,
        total_steps: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        **common: Any,
    ) -> None:
        self.threshold, self.decay = checked_number("threshold", threshold), checked_share("decay", decay)
        self.total_steps = None if total_steps is None else checked_count("total_steps", total_steps, "steps")
        self.mean, self.variance = -1.0, 0.0
        """Of the squared norm, running; a mean of -1: no step yet."""
        super().__init__(base, model, rho=rho, perturbation=perturbation, **common)

    def finish(self, batch: Batch) -> None:
        """Return g, or g(theta + rho g / ||g||) where g is large."""
        if self.is_large(float(self.ranks.mean_of(batch.first.norm().double().square()))):  # which must be read back
            with self.at(l2_ascent(batch.first, batch.radii)):
                batch.backward()
        else:
            batch.add(batch.first)

    def is_large(self, square: float) -> bool:
        """Compare a squared norm with the running mean and deviation, and move them."""
        if not math.isfinite(square):
            return True  # the second pass will not be finite either: the base, or its scaler, deals with it
        mean = square if self.mean < 0 else self.decay * self.mean + (1 - self.decay) * square
        self.variance = self.decay * self.variance + (1 - self.decay) * (square - mean) ** 2
        self.mean = mean
        c = 0.0 if self.total_steps is None else self.threshold * (1 - 2 * self.steps / self.total_steps)
        return square >= mean + c * math.sqrt(self.variance)
