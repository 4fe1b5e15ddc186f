"""SAM (Foret et al., ICLR 2021), ASAM (Kwon et al., ICML 2021), SAM-ON (Mueller et al., NeurIPS 2023)."""

from __future__ import annotations

from typing import Any, Literal, final

from torch import nn
from torch.optim import Optimizer

from ..batch import Batch
from ..checks import checked_number
from ..flow import Plan
from ..perturb import adaptive_ascent, l2_ascent
from ..step import SharpnessAware


@final
class SAM(SharpnessAware):
    """Step by the gradient at theta + rho g / ||g||: flat minima, at twice the base optimizer's cost.

    Args:
        base, model, m, perturbation, loss, seed: As for every method: see ``SharpnessAware``.
        rho: Radius of the neighbourhood. 0.05 is the paper's for ResNets; 0 is the base optimizer itself.
    """

    def finish(self, batch: Batch) -> None:
        """Return g(theta + rho g / ||g||)."""
        with self.at(l2_ascent(batch.first, batch.radii)):
            batch.backward()


@final
class ASAM(SharpnessAware):
    """Step by the gradient at theta + rho T^2 g / ||T g||, T = |theta| + eta: sharpness that rescaling cannot fool.

    Args:
        base, model, m, perturbation, loss, seed: As for every method: see ``SharpnessAware``.
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
        **common: Any,
    ) -> None:
        self.eta = checked_number("eta", eta)
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, **common)

    def finish(self, batch: Batch) -> None:
        """Return g(theta + rho T^2 g / ||T g||)."""
        with self.at(adaptive_ascent(batch.first, batch.radii, self.weights(), eta=self.eta)):
            batch.backward()


@final
class SAMON(SharpnessAware):
    """Step like SAM, perturbing the norm layers' weights only.

    Args:
        base, model, m, perturbation, loss, seed: As for every method: see ``SharpnessAware``.
        rho: Radius, about ten times SAM's.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.5,
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        **common: Any,
    ) -> None:
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, **common)

    def plan(self) -> Plan:
        """Take the tensors of the layers that normalise."""
        layers = [layer for layer in self.model.modules() if "Norm" in type(layer).__name__]
        held = {id(p) for layer in layers for p in layer.parameters(recurse=False)}
        parameters = self.parameters()
        tensors = {n: rho for n, rho in self.radii().items() if id(parameters[n]) in held}
        if not tensors:
            raise ValueError("SAM-ON perturbs norm layers, and the model has none to train; choose SAM")
        return Plan(tensors=tensors)

    def finish(self, batch: Batch) -> None:
        """Return g(theta + rho g / ||g||), g being the norm layers' part of the gradient."""
        with self.at(l2_ascent(batch.first, batch.radii)):
            batch.backward()
