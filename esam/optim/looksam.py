"""LookSAM (Liu et al., CVPR 2022): perturb every k-th step, reuse what it taught in between."""

from __future__ import annotations

import math
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from .ascent import Eps, l2_ascent, whole_norm
from .checks import checked_count, checked_number
from .combine import add_to_length, orthogonal_part
from .passes import Gradients
from .step import SharpnessAware, Targets


@final
class LookSAM(SharpnessAware):
    """Take SAM's gradient every k-th step; in between add the part of it that was orthogonal to the plain gradient.

    Args:
        base: Any torch optimizer; it makes the step.
        model: The module that ``base`` trains; its BatchNorm statistics move in the first pass only.
        rho: Radius of the neighbourhood, as for SAM.
        k: Perturb every k-th step; 1 is SAM. The paper's 5.
        alpha: Weight of the reused part; the paper's 0.7.
        m: Perturb each group of m samples of the batch by its own eps; None: one eps for the batch.
        seed: Unused by LookSAM itself; kept so that every method is built alike.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        k: int = 5,
        alpha: float = 0.7,
        m: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.k, self.alpha = checked_count("k", k, "steps"), checked_number("alpha", alpha)
        super().__init__(base, model, rho=rho, m=m, seed=seed)
        self.whole_gradient = k > 1
        self._steps = 0
        self._reused: Gradients = {}

    def perturbs_now(self) -> bool:
        """Perturb every k-th step, and until there is something to reuse."""
        return self._steps % self.k == 0 or not self._reused

    def ascent(self, chosen: Targets, gradients: list[Tensor]) -> Eps:
        """Return ``rho g / ||g||``."""
        return l2_ascent(chosen.weights, gradients, chosen.rho)

    def combine(self, first: Gradients | None) -> None:
        """After a perturbed step keep the orthogonal part of its gradient; otherwise add the part kept."""
        if self.k == 1:
            return
        for p in self._parameters():
            if p.grad is not None and p.grad.is_sparse:
                p.grad = p.grad.to_dense()  # the part to reuse is dense
        now = {n: p.grad for n, p in enumerate(self._parameters()) if p.grad is not None}
        if not math.isfinite(whole_norm(list(now.values()))):
            return  # the base, or its scaler, deals with it; the step does not count
        self._steps += 1
        if first is not None:
            self._reused = orthogonal_part(now, first) or self._reused
        else:
            add_to_length(now, self._reused, self.alpha)

    def memory(self) -> dict[str, Any]:
        """Return the number of steps and the part of the gradient to reuse."""
        return {"steps": self._steps, "reused": dict(self._reused)}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned, on the parameters' own devices."""
        parameters = self._parameters()
        self._steps = memory["steps"]
        self._reused = {n: g.to(parameters[n].device) for n, g in memory["reused"].items()}
