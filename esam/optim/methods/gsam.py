"""GSAM (Zhuang et al., ICLR 2022): descend the perturbed loss, and close its gap to the loss without raising it."""

from __future__ import annotations

from typing import Any, Literal, final

from torch import nn
from torch.optim import Optimizer

from ..batch import Batch
from ..checks import checked_number
from ..perturb import l2_ascent
from ..step import SharpnessAware
from .looksam import orthogonal_part


@final
class GSAM(SharpnessAware):
    """Step by g_p - alpha g_v: g_p is SAM's gradient, g_v the part of the plain gradient that is orthogonal to it.

    Args:
        base, model, rho, perturbation, loss, seed: As for SAM.
        alpha: Weight of the orthogonal part; the paper's 0.4 for ResNets. 0 is SAM.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        alpha: float = 0.4,
        perturbation: Literal["rank", "global"] = "rank",
        **common: Any,
    ) -> None:
        self.alpha = checked_number("alpha", alpha)
        super().__init__(base, model, rho=rho, perturbation=perturbation, **common)

    def finish(self, batch: Batch) -> None:
        """Return g_p - alpha g_v."""
        g = batch.mean_over_ranks(batch.first)
        with self.at(l2_ascent(batch.first, batch.radii)):
            batch.backward()
        batch.add(orthogonal_part(g, batch.gradient) * -self.alpha)
