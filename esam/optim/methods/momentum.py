"""Momentum-SAM (Becker et al., 2024): one pass a step, at a point along the momentum."""

from __future__ import annotations

from typing import Any, Literal, final

from torch import Tensor, nn
from torch.optim import Optimizer

from ..ascent import Eps, adaptive_ascent, l2_ascent
from ..checks import checked_choice, checked_count
from ..step import SharpnessAware
from ..underway import Targets

_MOMENTUM = ("momentum_buffer", "exp_avg")


@final
class MomentumSAM(SharpnessAware):
    """Step by the gradient at theta -+ rho v / ||v||, v the base's momentum (Becker et al., 2024): SAM at no cost.

    ``step`` returns the loss at that point, the only one that it visits.

    Args:
        base, model, seed: As for SAM; the base must keep a momentum: SGD with one, Adam and its relatives.
        rho: Radius, about ten times SAM's.
        direction: "against" the momentum, as the paper has it, or "along" it, as the gradient of SAM's ascent points.
        warmup_steps: Steps before the first perturbation.
        norm: "l2", or "adaptive": scaled by the weights, as ASAM's.
    """

    blind = True

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.5,
        direction: Literal["against", "along"] = "against",
        warmup_steps: int = 0,
        norm: Literal["l2", "adaptive"] = "l2",
        seed: int | None = None,
    ) -> None:
        self.direction = checked_choice("direction", direction, ("against", "along"))
        self.norm = checked_choice("norm", norm, ("l2", "adaptive"))
        self.warmup_steps = checked_count("warmup_steps", warmup_steps, "steps", least=0)
        if any(group.get("momentum") == 0 for group in base.param_groups if isinstance(group, dict)):
            raise ValueError("the base has no momentum to perturb along; give it one, such as SGD(..., momentum=0.9)")
        super().__init__(base, model, rho=rho, seed=seed)
        self._steps = 0

    def perturbs_now(self) -> bool:
        """Perturb after the warm-up."""
        return self._steps >= self.warmup_steps

    def blind_eps(self, targets: Targets) -> tuple[list[Tensor], Eps]:
        """Return the tensors that have a momentum, and eps along it."""
        found: list[tuple[int, Tensor]] = []
        for i, weight in enumerate(targets.weights):
            state = self.base.state.get(weight, {})
            momentum = next((state[key] for key in _MOMENTUM if state.get(key) is not None), None)
            if momentum is not None:
                found.append((i, momentum))
        weights = self.parallel.local([targets.weights[i] for i, _ in found])
        momenta = self.parallel.local([momentum for _, momentum in found])
        rho = [-targets.rho[i] if self.direction == "against" else targets.rho[i] for i, _ in found]
        if found and self.norm == "adaptive":
            return weights, adaptive_ascent(weights, momenta, rho, eta=0.01, norm_of=self.parallel.norm)
        return weights, l2_ascent(momenta, rho, self.parallel.norm(momenta))

    def after_step(self, loss: Tensor) -> None:
        """Count."""
        self._steps += 1

    def memory(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"steps": self._steps}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        self._steps = memory.get("steps", 0)
