"""Which samples take the second pass?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """What a ranking may read: the samples of the batch at the moment of selection."""

    losses: Tensor
    """The loss of each sample at theta, detached, in the order of the batch."""
    perturbed_losses: Callable[[], Tensor]
    """Run the batch forward at theta + eps and return the loss of each sample: costs one forward pass."""
    new_generator: Callable[[], torch.Generator]
    """Return ``generator``; drawn only where it is asked for."""

    @property
    def generator(self) -> torch.Generator:
        """A CPU generator of this step, for rankings that draw."""
        return self.new_generator()


Ranking = Callable[[Candidates], Tensor]
"""Candidates -> one score a sample; the samples with the highest scores are kept."""


def exact(batch: Candidates) -> Tensor:
    """Score by the rise of the loss under eps, as the paper does. Price: one forward pass."""
    return batch.perturbed_losses() - batch.losses


def random(batch: Candidates) -> Tensor:
    """Score by a coin: free, the paper's control."""
    return torch.rand(len(batch.losses), generator=batch.generator, device="cpu").to(batch.losses.device)


RANKINGS: dict[str, Ranking] = {"exact": exact, "random": random}


def keep_highest(scores: Tensor, gamma: float, least: int = 1) -> Tensor:
    """Return the indices of the share ``gamma`` with the highest scores, in ascending order.

    Exactly ``round(gamma * B)`` of them, but no fewer than ``least``; ties go to the lower index; a NaN comes last.

    >>> keep_highest(torch.tensor([0.1, 0.7, 0.7, 0.3]), gamma=0.5)
    tensor([1, 2])
    """
    k = max(least, round(gamma * len(scores)))
    order = torch.sort(scores, descending=True, stable=True).indices
    order = order[torch.isnan(scores)[order].byte().sort(stable=True).indices]  # torch sorts NaN first
    return order[:k].sort().values


def drawn_subset(size: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw ``count`` of ``size`` samples; return their indices and those of the rest, each in ascending order."""
    draws = torch.rand(size, generator=generator, device="cpu")
    order = torch.sort(draws, descending=True, stable=True).indices
    return order[:count].sort().values, order[count:].sort().values


def checked_scores(scores: object, batch: Candidates) -> Tensor:
    """Return a ranking's scores, or say what is wrong with them."""
    shape = tuple(batch.losses.shape)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != shape:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"the ranking returned {got}; return one score for each sample: a tensor of shape {shape}")
    return scores
