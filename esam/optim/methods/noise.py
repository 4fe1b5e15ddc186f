"""Random weight perturbation: one pass a step, at a random point nearby."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..ascent import Eps
from ..step import SharpnessAware
from ..underway import Targets


@final
class RandomPerturbation(SharpnessAware):
    """Step by the gradient at theta + noise, rho of each filter's norm long (random weight perturbation).

    ``step`` returns the loss at that point, the only one that it visits.

    Args:
        base, model, seed: As for SAM.
        rho: Expected length of a filter's noise, in units of its norm; a vector counts as one filter.
    """

    blind = True

    def __init__(self, base: Optimizer, model: nn.Module, *, rho: float = 0.1, seed: int | None = None) -> None:
        super().__init__(base, model, rho=rho, seed=seed)

    def blind_eps(self, targets: Targets) -> tuple[list[Tensor], Eps]:
        """Return all tensors, and a normal draw for each."""
        weights = self.parallel.local(targets.weights)
        return weights, Eps([self._noise(weight) for weight in weights], targets.rho)

    def _noise(self, weight: Tensor) -> Tensor:
        noise = torch.randn(weight.shape, generator=self.generator, dtype=torch.float32, device="cpu")
        rows = weight.detach().flatten(1) if weight.dim() > 1 else weight.detach().reshape(1, -1)
        if rows.numel() == 0:
            return torch.zeros_like(weight)
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True) / rows.shape[1] ** 0.5
        scaled: Tensor = noise.to(weight).view_as(rows) * length
        return scaled.view_as(weight)
