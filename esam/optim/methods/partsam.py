"""SAM for less by running less: the ascent, or both passes, on a part of the batch; or norm layers alone (SAM-ON)."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..buffers import has_batch_statistics
from ..checks import checked_choice, checked_share
from ..ranking import keep_highest
from ..step import SharpnessAware
from ..underway import Targets


@final
class PartSAM(SharpnessAware):
    """Take SAM's eps from a random part of the batch, or for some tensors only.

    Args:
        base, model, rho, perturbation, seed: As for SAM.
        share: Share of the batch that runs at theta and gives eps, in (0, 1].
        descent: What runs at theta + eps: the whole "batch", or that "part" alone.
        tensors: Which tensors are perturbed: "all", or those of "norm" layers (SAM-ON, Mueller et al., NeurIPS 2023),
            whose radius is about ten times SAM's.
    """

    parted = "drawn"
    first_on = "part"
    draws_samples = True

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        share: float = 0.25,
        descent: Literal["batch", "part"] = "batch",
        tensors: Literal["all", "norm"] = "all",
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        checked_choice("descent", descent, ("batch", "part"))
        self.share, self.second_on = checked_share("share", share), descent
        self.tensors = checked_choice("tensors", tensors, ("all", "norm"))
        super().__init__(base, model, rho=rho, perturbation=perturbation, seed=seed)

    def mask(self, targets: Targets) -> Targets:
        """Take all tensors, or those of the layers that normalise."""
        if self.tensors == "all":
            return targets
        layers = [layer for layer in self.model.modules() if "Norm" in type(layer).__name__]
        known = {id(p) for layer in layers for p in layer.parameters(recurse=False)}
        picks = [i for i, weight in enumerate(targets.weights) if id(weight) in known]
        if not picks:
            raise ValueError('tensors="norm" perturbs norm layers, and the model has none to train; use "all"')
        return targets.only(picks)

    def part(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw the share of the samples; two at least where a layer normalises by them."""
        least = 2 if has_batch_statistics(self.model) else 1
        return keep_highest(torch.rand(size, generator=generator, device="cpu"), self.share, least=least)
