"""F-SAM (Li et al., CVPR 2024): the ascent leaves out what the batch shares with all others."""

from __future__ import annotations

from typing import Any, Literal, final

import torch
from torch import nn
from torch.optim import Optimizer

from ..batch import Batch
from ..checks import checked_number, checked_share
from ..gradients import Gradients
from ..perturb import l2_ascent
from ..step import SharpnessAware


@final
class FSAM(SharpnessAware):
    """Step like SAM, with eps along the batch's own noise: its gradient without a running mean of all gradients.

    Args:
        base, model, rho, m, perturbation, loss, seed: As for SAM.
        sigma: How much of the running mean is taken away; the paper's 1. 0 is SAM.
        decay: Of the running mean; the paper's 0.9.
    """

    remembered = ("mean",)

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        sigma: float = 1.0,
        decay: float = 0.9,
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        **common: Any,
    ) -> None:
        self.sigma, self.decay = checked_number("sigma", sigma), checked_share("decay", decay)
        self.mean = Gradients()
        """The running mean of the gradients at theta, alike on every rank."""
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, **common)

    def finish(self, batch: Batch) -> None:
        """Return g(theta + rho d / ||d||), d = g - sigma mean."""
        g = batch.first
        self.mean = self.mean_with(batch.mean_over_ranks(g))
        with self.at(l2_ascent(g - self.mean * self.sigma, batch.radii)):
            del g  # the second pass needs the memory
            batch.backward()

    def mean_with(self, g: Gradients) -> Gradients:
        """Return the running mean with one more gradient in it; one that is not finite is left out."""
        finite, before = g.norm().isfinite(), dict(iter(self.mean))
        after = self.mean * self.decay + g * (1 - self.decay)
        kept = [torch.where(finite.to(t.device), t, before.get(n, torch.zeros_like(t))) for n, t in after]
        return after.like(after.index, kept)
