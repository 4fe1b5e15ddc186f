"""The base optimizer alone, driven by the same closure: what every method is compared with."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import checked_share
from ..ranking import keep_highest
from ..step import SharpnessAware


@final
class Base(SharpnessAware):
    """Step by the gradient at theta: the base optimizer, bit for bit, whatever radius its groups carry."""

    def __init__(self, base: Optimizer, model: nn.Module, *, seed: int | None = None) -> None:
        super().__init__(base, model, rho=0.0, seed=seed)

    def perturbs_now(self) -> bool:
        """Never."""
        return False


@final
class BasePart(SharpnessAware):
    """Step by the gradient at theta of a random part of the batch: what seeing fewer samples does by itself.

    The control for every method whose descent sees only a part of each batch: ``gamma``, in (0, 1], is that part.
    """

    parted = "drawn"
    first_on = second_on = "part"
    draws_samples = True

    def __init__(self, base: Optimizer, model: nn.Module, *, gamma: float = 0.5, seed: int | None = None) -> None:
        self.gamma = checked_share("gamma", gamma)
        super().__init__(base, model, rho=0.0, seed=seed)

    def perturbs_now(self) -> bool:
        """Never."""
        return False

    def part(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw a share gamma of the samples."""
        return keep_highest(torch.rand(size, generator=generator, device="cpu"), self.gamma)
