"""Momentum-SAM (Becker et al., 2024): one pass a step, at a point along the momentum."""

from __future__ import annotations

from typing import Any, Literal, final

from torch import nn
from torch.optim import Optimizer

from ..checks import checked_choice, checked_count
from ..flow import Plan
from ..perturb import adaptive_ascent, l2_ascent
from ..step import SharpnessAware

_MOMENTUM = ("momentum_buffer", "exp_avg")


@final
class MomentumSAM(SharpnessAware):
    """Step by the gradient at theta -+ rho v / ||v||, v the base's momentum (Becker et al., 2024): SAM at no cost.

    ``step`` returns the loss at that point, the only one that it visits.

    Args:
        base, model, loss, seed: As for SAM; the base must keep a momentum: SGD with one, Adam and its relatives.
        rho: Radius, about ten times SAM's.
        direction: "against" the momentum, as the paper has it, or "along" it, as the gradient of SAM's ascent points.
        warmup_steps: Steps before the first perturbation.
        norm: "l2", or "adaptive": scaled by the weights, as ASAM's.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.5,
        direction: Literal["against", "along"] = "against",
        warmup_steps: int = 0,
        norm: Literal["l2", "adaptive"] = "l2",
        **common: Any,
    ) -> None:
        self.direction = checked_choice("direction", direction, ("against", "along"))
        self.norm = checked_choice("norm", norm, ("l2", "adaptive"))
        self.warmup_steps = checked_count("warmup_steps", warmup_steps, "steps", least=0)
        if any(group.get("momentum") == 0 for group in getattr(base, "param_groups", [])):
            raise ValueError(_NO_MOMENTUM)
        super().__init__(base, model, rho=rho, **common)

    def plan(self) -> Plan | None:
        """Go to theta -+ rho v / ||v||, where there is a v."""
        if self.steps < self.warmup_steps:
            return None
        sign = -1 if self.direction == "against" else 1
        radii, parameters = {n: sign * rho for n, rho in self.radii().items()}, self.parameters()
        states = {n: self.base.state.get(parameters[n], {}) for n in radii}
        momenta = {n: s[key] for n, s in states.items() for key in _MOMENTUM if s.get(key) is not None}
        if not momenta and self.steps > 0:
            raise ValueError(_NO_MOMENTUM)
        v = self.ranks.named(list(momenta), self.ranks.local(list(momenta.values())))
        if self.norm == "adaptive":
            return Plan(at=adaptive_ascent(v, radii, self.weights(), eta=0.01))
        return Plan(at=l2_ascent(v, radii))


_NO_MOMENTUM = (
    "the base keeps no momentum to perturb along; choose one that does, such as SGD(..., momentum=0.9) or Adam"
)
