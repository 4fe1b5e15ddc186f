"""SAM (Foret et al., ICLR 2021): the gradient at the worst point nearby."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor, nn
from torch.optim import Optimizer

from .ascent import Eps, l2_ascent
from .step import SharpnessAware
from .underway import Targets


@final
class SAM(SharpnessAware):
    """Step by the gradient at theta + rho g / ||g||: flat minima, at twice the base optimizer's cost.

    Args:
        base: Any torch optimizer; it makes the step.
        model: The module that ``base`` trains; its BatchNorm statistics move in the first pass only.
        rho: Radius of the neighbourhood. 0.05 is the paper's for ResNets; 0 is the base optimizer itself.
        m: Perturb each group of m samples of the batch by its own eps (m-sharpness); None: one eps for the batch.
        perturbation: Under DistributedDataParallel, "rank": each rank perturbs by its own gradient; "global": all by
            the mean of theirs, for one more exchange of gradients.
        seed: Unused by SAM itself; kept so that every method is built alike.
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

    def ascent(self, chosen: Targets, gradients: list[Tensor]) -> Eps:
        """Return ``rho g / ||g||``."""
        return l2_ascent(gradients, chosen.rho, self.parallel.norm(gradients))
