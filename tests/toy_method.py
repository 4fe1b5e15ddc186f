"""A method as a contributor would write it: one file."""

from __future__ import annotations

from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from esam.optim import Batch, SharpnessAware
from esam.optim.checks import checked_number
from esam.optim.perturb import l2_ascent


@final
class StretchedSAM(SharpnessAware):
    """SAM whose perturbation is ``stretch`` times as long."""

    def __init__(
        self, base: Optimizer, model: nn.Module, *, rho: float = 0.05, stretch: float = 2.0, **common: Any
    ) -> None:
        self.stretch = checked_number("stretch", stretch)
        super().__init__(base, model, rho=rho, **common)

    def finish(self, batch: Batch) -> None:
        """Return g(theta + stretch rho g / ||g||)."""
        with self.at(self.stretch * l2_ascent(batch.first, batch.radii)):
            batch.backward()
