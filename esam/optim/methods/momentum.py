"""Momentum-SAM (Becker et al., 2024): one pass a step, at a point against the momentum."""

from __future__ import annotations

from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from ..checks import checked_count
from ..flow import Plan
from ..onepass import NO_MOMENTUM, momenta
from ..perturb import l2_ascent
from ..step import SharpnessAware


@final
class MomentumSAM(SharpnessAware):
    """Step by the gradient at theta - rho v / ||v||, v the base's momentum (Becker et al., 2024): SAM at no cost.

    ``step`` returns the loss at that point, the only one that it visits.

    Args:
        base, model, loss, seed: As for SAM; the base must keep a momentum: SGD with one, Adam and its relatives.
        rho: Radius, about ten times SAM's.
        warmup_steps: Steps before the first perturbation.
    """

    def __init__(
        self, base: Optimizer, model: nn.Module, *, rho: float = 0.5, warmup_steps: int = 0, **common: Any
    ) -> None:
        self.warmup_steps = checked_count("warmup_steps", warmup_steps, "steps", least=0)
        if any(group.get("momentum") == 0 for group in getattr(base, "param_groups", [])):
            raise ValueError(NO_MOMENTUM)
        super().__init__(base, model, rho=rho, **common)

    def plan(self) -> Plan | None:
        """Go to theta - rho v / ||v||, where there is a v."""
        if self.steps < self.warmup_steps:
            return None
        radii = {n: -rho for n, rho in self.radii().items()}
        held = momenta(self, radii)
        if not held and self.steps > 0:
            raise ValueError(NO_MOMENTUM)
        v = self.ranks.named(list(held), self.ranks.local(list(held.values())))
        return Plan(at=l2_ascent(v, radii))
