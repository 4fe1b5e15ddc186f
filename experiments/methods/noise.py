"""Random weight perturbation: one pass a step, at a random point nearby."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esam.optim import Gradients, Plan, SharpnessAware


@final
class RandomPerturbation(SharpnessAware):
    """Step by the gradient at theta + noise, rho of each filter's norm long (random weight perturbation).

    ``step`` returns the loss at that point, the only one that it visits.

    Args:
        base, model, seed: As for SAM.
        rho: Expected length of a filter's noise, in units of its norm; a vector counts as one filter.
    """

    title = "Random perturbation"

    @staticmethod
    def cost(settings: Any) -> float:
        """One pass."""
        return 3.0

    def __init__(self, base: Optimizer, model: nn.Module, *, rho: float = 0.1, **common: Any) -> None:
        super().__init__(base, model, rho=rho, **common)

    def plan(self) -> Plan:
        """Draw a normal perturbation for each tensor."""
        radii, weights = self.radii(), self.weights()
        return Plan(at=Gradients(list(radii), [self._noise(weights[n].detach()) * rho for n, rho in radii.items()]))

    def _noise(self, weight: Tensor) -> Tensor:
        noise = torch.randn(weight.shape, generator=self.generator, dtype=torch.float32, device="cpu")
        rows = weight.flatten(1) if weight.dim() > 1 else weight.reshape(1, -1)
        if rows.numel() == 0:
            return torch.zeros_like(weight)
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True) / rows.shape[1] ** 0.5
        return (noise.to(weight).view_as(rows) * length).view_as(weight)
