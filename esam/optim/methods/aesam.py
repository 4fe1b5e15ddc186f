"""AE-SAM (Jiang et al., ICLR 2023): SAM where the gradient is large for its time."""

from __future__ import annotations

import math
from typing import Any, Literal, final

from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import checked_count, checked_number, checked_share
from ..step import SharpnessAware


@final
class AESAM(SharpnessAware):
    """Take SAM's step where the squared gradient norm is high for this stage of training (Jiang et al., ICLR 2023).

    Args:
        base, model, rho, perturbation, seed: As for SAM.
        threshold: How high: above mean + c * deviation, both running; c falls from ``threshold`` to minus that in the
            course of training, so that SAM's steps become more. The paper's 1.
        decay: Of the running mean and variance; the paper's 0.9.
        total_steps: How many steps training has; None: c is 0.
    """

    whole_gradient = True

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
        seed: int | None = None,
    ) -> None:
        self.threshold, self.decay = checked_number("threshold", threshold), checked_share("decay", decay)
        self.total_steps = None if total_steps is None else checked_count("total_steps", total_steps, "steps")
        super().__init__(base, model, rho=rho, perturbation=perturbation, seed=seed)
        self._steps, self._mean, self._variance = 0, -1.0, 0.0

    def worth(self, norm: float) -> bool:
        """Compare with the running mean and deviation, and move them."""
        square = norm * norm
        if not math.isfinite(square):
            return True  # the second pass will not be finite either: the base, or its scaler, deals with it
        mean = square if self._mean < 0 else self.decay * self._mean + (1 - self.decay) * square
        self._variance = self.decay * self._variance + (1 - self.decay) * (square - mean) ** 2
        self._mean = mean
        c = 0.0 if self.total_steps is None else self.threshold * (1 - 2 * self._steps / self.total_steps)
        return square >= mean + c * math.sqrt(self._variance)

    def after_step(self, loss: Tensor) -> None:
        """Count."""
        self._steps += 1

    def memory(self) -> dict[str, Any]:
        """Return the number of steps, and mean and variance of the squared norm."""
        return {"steps": self._steps, "mean": self._mean, "variance": self._variance}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        self._steps, self._mean = memory.get("steps", 0), memory.get("mean", -1.0)
        self._variance = memory.get("variance", 0.0)
