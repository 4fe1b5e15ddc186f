"""ASAM (Kwon et al., ICML 2021): a neighbourhood that scales with the weights."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor, nn
from torch.optim import Optimizer

from .ascent import Eps, adaptive_ascent
from .checks import checked_number
from .step import SharpnessAware
from .underway import Targets


@final
class ASAM(SharpnessAware):
    """Step by the gradient at theta + rho T^2 g / ||T g||, T = |theta| + eta: sharpness that rescaling cannot fool.

    Args:
        base: Any torch optimizer; it makes the step.
        model: The module that ``base`` trains; its BatchNorm statistics move in the first pass only.
        rho: Radius, relative to the weights, so about ten times SAM's: the paper's 0.5 for CIFAR-10.
        eta: Keeps weights near zero movable; the paper's 0.01.
        m: Perturb each group of m samples of the batch by its own eps; None: one eps for the batch.
        perturbation: Under DistributedDataParallel, "rank": each rank perturbs by its own gradient; "global": all by
            the mean of theirs, for one more exchange of gradients.
        seed: Unused by ASAM itself; kept so that every method is built alike.
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

    def ascent(self, chosen: Targets, gradients: list[Tensor]) -> Eps:
        """Return ``rho T^2 g / ||T g||``."""
        weights = self.parallel.local(chosen.weights)
        return adaptive_ascent(weights, gradients, chosen.rho, eta=self.eta, norm_of=self.parallel.norm)
