"""SAM for less: eps from a random part of the batch; all of it descends."""

from __future__ import annotations

from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from esam.optim import Batch, Plan, SharpnessAware
from esam.optim.checks import checked_share
from esam.optim.perturb import l2_ascent


@final
class AscentPart(SharpnessAware):
    """Step by the batch's gradient at theta + rho g_S / ||g_S||, S a random part of the batch.

    Args:
        base, model, rho, perturbation, seed: As for SAM.
        share: Share of the batch in S, in (0, 1]. A step costs 1 + share times the base's.
    """

    title = "SAM, ascent on a part"

    @staticmethod
    def cost(settings: Any) -> float:
        """Two passes, one of them on a part."""
        return 3 + 3 * float(settings["share"])

    def __init__(
        self, base: Optimizer, model: nn.Module, *, rho: float = 0.05, share: float = 0.25, **common: Any
    ) -> None:
        self.share = checked_share("share", share)
        super().__init__(base, model, rho=rho, **common)

    def plan(self) -> Plan:
        """Run S at theta, and nothing else."""
        return Plan(subset=self.share, rest=False)

    def finish(self, batch: Batch) -> None:
        """Return g_B(theta + rho g_S / ||g_S||)."""
        with self.at(l2_ascent(batch.subset.first, batch.radii)):
            batch.backward()
