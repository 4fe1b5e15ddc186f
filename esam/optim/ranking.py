"""Which samples take the second pass?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .head import Head


@dataclass(frozen=True)
class Candidates:
    """What a ranking may look at: the samples of the batch at the moment of selection."""

    losses: Tensor
    """The loss of each sample at theta, detached, in the order of the batch."""
    perturbed_losses: Callable[[], Tensor]
    """Run the batch forward at theta + eps and return the loss of each sample: costs one forward pass."""
    generator: torch.Generator
    """The optimizer's own CPU generator, for rankings that draw."""
    head: Head | None = None
    """What the last linear layer saw at theta; only for rankings marked by ``reads_head``."""


Ranking = Callable[[Candidates], Tensor]
"""Candidates -> one score a sample; the samples with the highest scores are kept."""


def exact(batch: Candidates) -> Tensor:
    """Score by the rise of the loss under eps, as the paper does. Price: one forward pass."""
    return batch.perturbed_losses() - batch.losses


def loss(batch: Candidates) -> Tensor:
    """Score by the loss at theta: free, and drawn to wrong labels."""
    return batch.losses


def random(batch: Candidates) -> Tensor:
    """Score by a coin: free, the paper's control."""
    return torch.rand(len(batch.losses), generator=batch.generator).to(batch.losses.device)


def reads_head(ranking: Ranking) -> Ranking:
    """Mark a ranking that looks at ``Candidates.head``."""
    ranking.reads_head = True  # type: ignore[attr-defined]
    return ranking


@reads_head
def gradient_norm(batch: Candidates) -> Tensor:
    """Score by the norm of the sample's gradient in the last linear layer: free, for any loss."""
    assert batch.head is not None, "a ranking marked by reads_head is given the head"
    # the gradient of weight and bias is the outer product of the output's gradient and (input, 1)
    inputs = (batch.head.inputs.square().sum(1) + 1).sqrt()
    scores: Tensor = torch.linalg.vector_norm(batch.head.gradients, dim=1) * inputs
    return scores


@reads_head
def aligned(batch: Candidates) -> Tensor:
    """Score by the product of the sample's gradient with the batch's in the last linear layer: free, for any loss.

    To first order and up to a factor, it is the rise that the layer's part of SAM's eps brings.
    """
    assert batch.head is not None, "a ranking marked by reads_head is given the head"
    inputs, gradients = batch.head.inputs, batch.head.gradients
    moved = inputs @ (inputs.T @ gradients) + gradients.sum(0)  # how the layer's outputs move along that eps
    return (gradients * moved).sum(1)


RANKINGS: dict[str, Ranking] = {
    "exact": exact,
    "aligned": aligned,
    "gradient": gradient_norm,
    "loss": loss,
    "random": random,
}


def keep_highest(scores: Tensor, gamma: float) -> Tensor:
    """Return the indices of the share ``gamma`` with the highest scores, in ascending order.

    Exactly ``max(1, round(gamma * B))`` of them; ties go to the lower index; a NaN score comes last.

    >>> keep_highest(torch.tensor([0.1, 0.7, 0.7, 0.3]), gamma=0.5)
    tensor([1, 2])
    """
    k = max(1, round(gamma * len(scores)))
    order = torch.sort(scores, descending=True, stable=True).indices
    order = order[torch.isnan(scores)[order].byte().sort(stable=True).indices]  # torch sorts NaN first
    return order[:k].sort().values


def checked_ranking(ranking: str | Ranking) -> Ranking:
    """Return the ranking of that name, or the caller's own function."""
    if callable(ranking):
        return ranking
    if ranking not in RANKINGS:
        raise ValueError(f"ranking must be one of {', '.join(RANKINGS)} or a function of Candidates, got {ranking!r}")
    return RANKINGS[ranking]


def checked_scores(scores: object, batch: Candidates) -> Tensor:
    """Return a ranking's scores, or say what is wrong with them."""
    shape = tuple(batch.losses.shape)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != shape:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"the ranking returned {got}; return one score for each sample: a tensor of shape {shape}")
    return scores
