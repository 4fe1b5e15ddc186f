"""SAM in some of the steps: late, early, or every few."""

from __future__ import annotations

import math
from typing import Any, Literal, final

from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import checked_choice, checked_count, checked_share
from ..step import SharpnessAware


@final
class SometimesSAM(SharpnessAware):
    """Take SAM's step in a share of all steps, the base's own in the others.

    Args:
        base, model, rho, perturbation, seed: As for SAM.
        when: "late" or "early" in training, or "every" few steps.
        share: Share of the steps that are SAM's, in (0, 1].
        total_steps: How many steps training has, which "late" and "early" count by; None: every step is SAM's.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        when: Literal["late", "early", "every"] = "late",
        share: float = 0.25,
        total_steps: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        self.when, self.share = checked_choice("when", when, ("late", "early", "every")), checked_share("share", share)
        self.total_steps = None if total_steps is None else checked_count("total_steps", total_steps, "steps")
        super().__init__(base, model, rho=rho, perturbation=perturbation, seed=seed)
        self._steps = 0

    def perturbs_now(self) -> bool:
        """Tell by the number of steps taken."""
        if self.when == "every":
            return math.floor(self._steps * self.share) != math.floor((self._steps - 1) * self.share)
        if self.total_steps is None:
            return True
        done = self._steps / self.total_steps
        return done < self.share if self.when == "early" else done >= 1 - self.share

    def waits(self) -> int:
        """Return how many steps are left before the phase begins; 0 where there is none to wait for."""
        if self.when != "late" or self.total_steps is None:
            return 0
        return max(0, math.ceil(self.total_steps * (1 - self.share)) - self._steps)

    def after_step(self, loss: Tensor) -> None:
        """Count."""
        self._steps += 1

    def memory(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"steps": self._steps}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        self._steps = memory.get("steps", 0)
