"""Which tensors are perturbed in this step, and how likely was that?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Draw:
    """The positions drawn, and each position's probability of being drawn: dividing by it keeps eps unbiased."""

    picks: list[int]
    probabilities: list[float]


Choice = Callable[[int, float, torch.Generator], Draw]
"""(number of tensors, beta, generator) -> draw."""


def independent(count: int, beta: float, generator: torch.Generator) -> Draw:
    """Draw each tensor with probability beta, as the paper does; at least one."""
    lots = torch.rand(count, generator=generator).tolist()
    picks = [i for i, lot in enumerate(lots) if lot < beta]
    return Draw(picks or [int(torch.randint(count, (), generator=generator))], [beta] * count)


def suffix(count: int, beta: float, generator: torch.Generator) -> Draw:
    """Draw a run of tensors from a random depth to the output, so that backward really stops early."""
    full, depth = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    return run_to_the_output(count, beta, full, depth)


def run_to_the_output(count: int, beta: float, full: float, depth: float) -> Draw:
    """Return the run that two lots in [0, 1) decide: whether all tensors are drawn, and else from which depth on.

    Depth is the order in which the tensors were given. Beta is the mean share of tensors perturbed (a little more for
    few tensors, since the last is always drawn); a tensor is the more likely the nearer it lies to the output. Runs are
    mixed with full draws, so that each tensor has probability beta / 2 at least: no radius is scaled by more than
    2 / beta.
    """
    certain = share_of_full_draws(beta)  # also the probability of the first tensor, at least
    rest = (beta - certain) / (1 - certain) if certain < 1 else 0.0  # mean share of the other draws, at most 1/2
    # a start of fraction 1 - u^power leaves a run of mean length 1 / (1 + power)
    power = 1 / rest - 1 if rest > 0 else float("inf")
    ends = [(i + 1) / count for i in range(count)]
    # position i belongs to the run when its start is at or before i: probability ends[i] ** power
    probabilities = [certain + (1 - certain) * end**power for end in ends]
    if full < certain:
        return Draw(list(range(count)), probabilities)
    return Draw([i for i, end in enumerate(ends) if depth <= end**power], probabilities)


def share_of_full_draws(beta: float) -> float:
    """Return how often a suffix is the whole."""
    return max(beta / 2, 2 * beta - 1)


CHOICES: dict[str, Choice] = {"independent": independent, "suffix": suffix}


def checked_choice(choose: str) -> Choice:
    """Return the draw of that name."""
    if choose not in CHOICES:
        raise ValueError(f"choose must be one of {', '.join(CHOICES)}, got {choose!r}")
    return CHOICES[choose]
