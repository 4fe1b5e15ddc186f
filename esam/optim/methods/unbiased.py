"""SAM whose second pass runs a part of the batch without bias: likely samples count less (Horvitz and Thompson)."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import checked_share
from ..ranking import Candidates, Weighted
from ..step import SharpnessAware

FLOOR = 0.2
"""Share of the mean score that every sample has at least: no weight exceeds about 1 / (FLOOR gamma)."""


@final
class UnbiasedSAM(SharpnessAware):
    """Step by an unbiased estimate of SAM's gradient: samples of high loss are likelier to run, and count less.

    Args:
        base, model, rho, perturbation, seed: As for SAM.
        gamma: Share of the batch that takes the second pass, in (0, 1]; 1 is SAM.
    """

    draws_samples = True

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        gamma: float = 0.5,
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        self.gamma = checked_share("gamma", gamma)
        self.reads_losses = self.gamma < 1
        super().__init__(base, model, rho=rho, perturbation=perturbation, seed=seed)

    def select(self, batch: Candidates) -> Weighted | None:
        """Draw by the loss at theta; each sample counts one over its probability."""
        if self.gamma == 1:
            return None
        losses = batch.losses.detach().double().cpu().abs()
        if not bool(torch.isfinite(losses).all()):
            return None
        chances = inclusion(losses + FLOOR * losses.mean(), max(1, round(self.gamma * len(losses))))
        start = torch.rand((), generator=batch.generator, dtype=torch.float64, device="cpu")
        indices = systematic_draw(chances, float(start))
        return Weighted(indices.to(batch.losses.device), 1 / (len(losses) * chances[indices]))


def inclusion(scores: Tensor, count: int) -> Tensor:
    """Return probabilities in proportion to the scores, at most 1 each, that sum to ``count``.

    >>> inclusion(torch.tensor([1.0, 1.0, 2.0, 12.0]), 2)
    tensor([0.2500, 0.2500, 0.5000, 1.0000])
    """
    chances = torch.full_like(scores, count / len(scores))
    if float(scores.sum()) <= 0:
        return chances
    certain = torch.zeros_like(scores, dtype=torch.bool)
    for _ in range(len(scores)):
        free = count - int(certain.sum())
        chances = torch.where(certain, 1.0, free * scores / scores[~certain].sum().clamp_min(1e-300))
        if not bool((chances > 1).any()):
            break
        certain |= chances > 1
    return chances.clamp(max=1.0)


def systematic_draw(chances: Tensor, start: float) -> Tensor:
    """Return the indices that evenly spaced marks hit on the line of chances laid end to end: each with its own.

    >>> systematic_draw(torch.tensor([0.25, 0.25, 0.5, 1.0]), 0.3)
    tensor([1, 3])
    """
    ends = chances.cumsum(0)
    marks = torch.arange(round(float(ends[-1])), dtype=ends.dtype, device="cpu") + start
    hit: Tensor = torch.searchsorted(ends, marks, right=True).clamp(max=len(chances) - 1)
    return torch.unique(hit)  # type: ignore[no-any-return]
