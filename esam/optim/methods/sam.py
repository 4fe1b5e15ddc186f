"""SAM (Foret et al., ICLR 2021) and ASAM (Kwon et al., ICML 2021): the gradient at the worst point nearby."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor, nn
from torch.optim import Optimizer

from ..ascent import Eps, adaptive_ascent
from ..checks import checked_number
from ..step import SharpnessAware
from ..underway import Targets


@final
class SAM(SharpnessAware):
    """Step by the gradient at theta + rho g / ||g||: flat minima, at twice the base optimizer's cost.

    Args:
        base, model, m, perturbation, seed: As for every method: see ``SharpnessAware``.
        rho: Radius of the neighbourhood. 0.05 is the paper's for ResNets; 0 is the base optimizer itself.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, seed=seed)


@final
class ASAM(SharpnessAware):
    """Step by the gradient at theta + rho T^2 g / ||T g||, T = |theta| + eta: sharpness that rescaling cannot fool.

    Args:
        base, model, m, perturbation, seed: As for every method: see ``SharpnessAware``.
        rho: Radius, relative to the weights, so about ten times SAM's: the paper's 0.5 for CIFAR-10.
        eta: Keeps weights near zero movable; the paper's 0.01.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.5,
        eta: float = 0.01,
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        self.eta = checked_number("eta", eta)
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, seed=seed)

    def ascent(self, drawn: Targets, gradients: list[Tensor]) -> Eps:
        """Return ``rho T^2 g / ||T g||``."""
        weights = self.parallel.local(drawn.weights)
        return adaptive_ascent(weights, gradients, drawn.rho, eta=self.eta, norm_of=self.parallel.norm)
