"""Which tensors are perturbed in this step, and how likely was that?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Mask:
    """The positions drawn, and each position's probability of being drawn: dividing by it keeps eps unbiased."""

    picks: list[int]
    probabilities: list[float]


DrawMask = Callable[[int, float, torch.Generator], Mask]
"""(number of tensors, beta, generator) -> mask. Tensors stand in the order of the model, from input to output."""


def independent(count: int, beta: float, generator: torch.Generator) -> Mask:
    """Draw each tensor with probability beta, as the paper does; one of them where that would draw none."""
    draws = torch.rand(count, generator=generator, device="cpu").tolist()
    picks = [i for i, draw in enumerate(draws) if draw < beta]
    if not picks:
        picks = [int(torch.randint(count, (), generator=generator, device="cpu"))]
    return Mask(picks, [beta + (1 - beta) ** count / count] * count)


def suffix(count: int, beta: float, generator: torch.Generator) -> Mask:
    """Draw a run of tensors from a random depth to the output, so that backward really stops early.

    Beta is the mean share of tensors perturbed (a little more for few tensors, since the last is always drawn); a
    tensor is the more likely the nearer it lies to the output. Runs are mixed with full draws, so that each tensor has
    probability beta / 2 at least: no radius is scaled by more than 2 / beta.
    """
    full, depth = torch.rand(2, generator=generator, dtype=torch.float64, device="cpu").tolist()
    certain = max(beta / 2, 2 * beta - 1)  # of full draws; also the probability of the first tensor, at least
    rest = (beta - certain) / (1 - certain) if certain < 1 else 0.0  # mean share of the other draws, at most 1/2
    # a start of fraction 1 - u^power leaves a run of mean length 1 / (1 + power)
    power = 1 / rest - 1 if rest > 0 else float("inf")
    ends = [(i + 1) / count for i in range(count)]
    # position i belongs to the run when its start is at or before i: probability ends[i] ** power
    probabilities = [certain + (1 - certain) * end**power for end in ends]
    if full < certain:
        return Mask(list(range(count)), probabilities)
    return Mask([i for i, end in enumerate(ends) if depth <= end**power], probabilities)


MASKS: dict[str, DrawMask] = {"independent": independent, "suffix": suffix}
