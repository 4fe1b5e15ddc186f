"""What does SDS select in a batch, and does it represent the batch?

B+ holds the share gamma of the samples whose loss rises most from theta to theta + eps, B- the others, B_rand as many
as B+ drawn by lot. R is a set's mean rise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esam.optim.checks import checked_share
from esam.optim.selection import keep_highest

from .directions import Direction, cosine_similarity, sam_eps
from .objective import ModelObjective, Parameters, moved, repeats, value_and_gradient


@dataclass(frozen=True)
class Selection:
    """A batch taken apart by SDS."""

    losses: Tensor
    """Of each sample at theta."""
    perturbed_losses: Tensor
    """Of each sample at theta + eps."""
    rows: dict[str, Tensor]
    """The samples of "all", "plus", "minus" and "random", as indices in ascending order."""
    eps: Direction

    def sets(self) -> dict[str, dict[str, float]]:
        """Return the count of each set, its mean losses at theta and at theta + eps, and R, their difference."""
        figures = {}
        for which, rows in self.rows.items():
            loss, perturbed = (float(values[rows].double().mean()) for values in (self.losses, self.perturbed_losses))
            figures[which] = {"count": len(rows), "loss": loss, "perturbed_loss": perturbed, "rise": perturbed - loss}
        return figures


def select(
    objective: ModelObjective, parameters: Parameters, *, gamma: float = 0.5, rho: float = 0.05, seed: int = 0
) -> Selection:
    """Take a batch apart as SDS does, by SAM's eps of radius ``rho``. ``seed`` draws B_rand."""
    checked_share("gamma", gamma)
    loss, gradient = value_and_gradient(objective, parameters)
    repeats(objective, parameters, first=loss)
    eps = sam_eps(gradient, rho)
    with torch.no_grad():
        losses, perturbed = objective.losses(parameters), objective.losses(moved(parameters, eps))
    everything = torch.arange(len(losses))
    plus = keep_highest(perturbed - losses, gamma).cpu()
    minus = everything[~torch.isin(everything, plus)]
    if not len(minus):
        raise ValueError(f"no sample of {objective.count} is left for B- at gamma = {gamma}; choose a smaller gamma")
    random = torch.randperm(len(losses), generator=torch.Generator().manual_seed(seed))[: len(plus)].sort().values
    rows = {"all": everything, "plus": plus, "minus": minus, "random": random}
    return Selection(losses.cpu(), perturbed.cpu(), rows, eps)


def gradient_cosines(objective: ModelObjective, parameters: Parameters, selection: Selection) -> dict[str, float]:
    """Return the cosine of the gradients of B+, B- and B_rand to that of B, all at theta + eps."""
    there = moved(parameters, selection.eps)
    _, all_samples = value_and_gradient(objective, there)
    return {
        which: cosine_similarity(value_and_gradient(objective.only(selection.rows[which]), there)[1], all_samples)
        for which in ("plus", "minus", "random")
    }
