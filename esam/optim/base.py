"""The base optimizer alone, driven by the same closure: what every method is compared with."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.optim import Optimizer

from .ascent import Eps
from .step import SharpnessAware, Targets


@final
class Base(SharpnessAware):
    """Step by the gradient at theta: the base optimizer, bit for bit, whatever radius its groups carry.

    Args:
        base: Any torch optimizer; it makes the step.
        model: The module that ``base`` trains.
        seed: Unused; kept so that every method is built alike.
    """

    def __init__(self, base: Optimizer, model: nn.Module, *, seed: int | None = None) -> None:
        super().__init__(base, model, rho=0.0, seed=seed)

    def perturbs_now(self) -> bool:
        """Never."""
        return False

    def ascent(self, chosen: Targets, gradients: list[Tensor]) -> Eps:
        """Never asked for."""
        raise AssertionError("the base's own step has no ascent")
