"""LookSAM (Liu et al., CVPR 2022): perturb every k-th step, reuse what it taught in between."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .ascent import l2_ascent, tensor_norms, usable, whole_norm
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
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be a whole number of steps >= 1, got {k!r}")
        if not 0 <= alpha < float("inf"):
            raise ValueError(f"alpha must be a finite number >= 0, got {alpha!r}")
        super().__init__(base, model, rho=rho, m=m, seed=seed)
        self.k, self.alpha = k, alpha
        self.whole_gradient = k > 1
        self._steps = 0
        self._reused: Gradients = {}

    def perturbs_now(self) -> bool:
        """Perturb every k-th step, and until there is something to reuse."""
        return self._steps % self.k == 0 or not self._reused

    def ascent(self, chosen: Targets, gradients: list[Tensor]) -> list[Tensor]:
        """Return ``rho g / ||g||``."""
        return l2_ascent(chosen.weights, gradients, chosen.rho)

    def combine(self, trainable: Targets, first: Gradients | None) -> None:
        """After a perturbed step keep the orthogonal part of its gradient; otherwise add the part kept."""
        self._steps += 1
        now = {n: w.grad for n, w in zip(trainable.index, trainable.weights, strict=True) if w.grad is not None}
        if first is not None:
            self._reused = _orthogonal(now, first) or self._reused
        elif self._reused and self.k > 1:
            common = [n for n in now if n in self._reused]
            size, reused = whole_norm(tensor_norms(list(now.values()))), whole_norm(tensor_norms(self._values(common)))
            if usable(size) and usable(reused):
                factor = self.alpha * size / reused
                torch._foreach_add_([now[n] for n in common], self._values(common), alpha=factor)

    def memory(self) -> dict[str, Any]:
        """Return the number of steps and the part of the gradient to reuse."""
        return {"steps": self._steps, "reused": dict(self._reused)}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned, on the parameters' own devices."""
        parameters = self._parameters()
        self._steps = memory["steps"]
        self._reused = {n: g.to(parameters[n].device) for n, g in memory["reused"].items()}

    def _values(self, places: list[int]) -> list[Tensor]:
        return [self._reused[n] for n in places]


def _orthogonal(gradients: Gradients, direction: Gradients) -> Gradients:
    """Return the part of the whole gradient orthogonal to ``direction``; empty where either is not finite or zero."""
    common = [n for n in gradients if n in direction]
    length = whole_norm(tensor_norms([direction[n] for n in direction]))
    if not usable(length) or not usable(whole_norm(tensor_norms(list(gradients.values())))):
        return {}
    products = [(gradients[n] * direction[n]).sum(dtype=torch.float64) for n in common]
    along = sum(torch.stack([p.to(products[0].device) for p in products]).tolist()) / length**2
    return {n: g - along * direction[n] if n in direction else g.clone() for n, g in gradients.items()}
