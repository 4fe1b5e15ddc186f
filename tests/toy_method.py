"""A method as a contributor would write it: one file."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor, nn
from torch.optim import Optimizer

from esam.optim.ascent import Eps
from esam.optim.checks import checked_number
from esam.optim.step import SharpnessAware
from esam.optim.underway import Targets


@final
class StretchedSAM(SharpnessAware):
    """SAM whose perturbation is ``stretch`` times as long."""

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        stretch: float = 2.0,
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        self.stretch = checked_number("stretch", stretch)
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, seed=seed)

    def ascent(self, drawn: Targets, gradients: list[Tensor]) -> Eps:
        """Return ``stretch rho g / ||g||``."""
        eps = super().ascent(drawn, gradients)
        return Eps(eps.directions, [self.stretch * factor for factor in eps.factors])
