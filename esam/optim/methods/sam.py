"""SAM (Foret et al., ICLR 2021), ASAM (Kwon et al., ICML 2021), SAM-ON (Mueller et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, final

from torch import nn
from torch.optim import Optimizer

from ..batch import Batch
from ..checks import checked_choice, checked_number
from ..flow import Plan
from ..gradients import Gradients
from ..perturb import adaptive_ascent, l2_ascent, spectral_ascent
from ..step import SharpnessAware


@final
class SAM(SharpnessAware):
    """Step by the gradient at theta + rho g / ||g||: flat minima, at twice the base optimizer's cost.

    Args:
        base, model, m, perturbation, loss, seed: As for every method: see ``SharpnessAware``.
        rho: Radius of the neighbourhood. 0.05 is the paper's for ResNets; 0 is the base optimizer itself.
        geometry: The neighbourhood's form: "l2", one ball for all weights; or "spectral", for Muon as base: each matrix
            moves along all its directions alike, by ``rho`` times its group's learning rate. No trial has compared
            the two.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        m: int | None = None,
        geometry: Literal["l2", "spectral"] = "l2",
        perturbation: Literal["rank", "global"] = "rank",
        **common: Any,
    ) -> None:
        self.geometry = checked_choice("geometry", geometry, ("l2", "spectral"))
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, **common)

    @staticmethod
    def ineffective(settings: Mapping[str, Any]) -> set[str]:
        """Return the geometry where it is SAM's own."""
        return {"geometry"} if settings.get("geometry", "l2") == "l2" else set()

    def finish(self, batch: Batch) -> None:
        """Return g(theta + rho g / ||g||)."""
        with self.at(l2_ascent(batch.first, batch.radii) if self.geometry == "l2" else self._spectral(batch)):
            batch.backward()

    def _spectral(self, batch: Batch) -> Gradients:
        """Return lr rho U V^T."""
        if self.ranks.sharded:
            raise ValueError('geometry="spectral" needs whole matrices, and these are sharded; leave it out')
        rates = [float(group["lr"]) for group in self.param_groups for _ in group["params"]]
        return spectral_ascent(batch.first, {n: rho * rates[n] for n, rho in batch.radii.items()})


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
