"""What do slow ranks cost, and ranks that keep more samples than others? Simulated: a step ends with its last rank."""

from __future__ import annotations

import torch

from esam.optim import METHODS

from .exchange import Perturbation, passes

STEPS = 400
"""Simulated; the mean over them is good to some per mille."""


def segments(name: str, perturbation: Perturbation = "rank") -> list[float]:
    """Return the units of compute between one wait for all ranks and the next, the last of a step included.

    A global eps waits between the passes; otherwise a step waits once, when the last backward exchanges gradients.
    """
    units, run = METHODS[name].units(), passes(name)
    waits = perturbation == "global" and "perturbation" in METHODS[name].options() and run.perturbed > 0
    second = 3 * run.last * run.perturbed + run.forward
    return [units - second, second] if waits else [units]


def straggling(parts: list[float], ranks: int, noise: float, *, seed: int = 0, steps: int = STEPS) -> float:
    """Return the time of a step over that of one rank alone, where every unit of compute takes a time of its own.

    Units are independent and log-normal with mean 1; ``noise`` is the standard deviation of their logarithm.
    """
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(steps)
    for units in parts:
        # the sum of some log-normal units, by its mean and variance: a unit may be a fraction
        spread = (units * (torch.tensor(noise) ** 2).expm1()).sqrt()
        draws = torch.randn(steps, ranks, generator=generator)
        shape = (1 + (spread / units) ** 2).log().sqrt()
        times = units * (shape * draws - shape**2 / 2).exp()
        total += times.max(dim=1).values
    return float(total.mean()) / sum(parts)


def unequal_kept(
    ranks: int, samples: int, gamma: float, *, alike: float = 0.0, seed: int = 0, steps: int = 50
) -> float:
    """Return the most samples that a rank keeps over the mean, were all ranks to rank their samples together.

    ``alike`` is the share of a score's variance that the samples of a rank have in common: 0 where they are shuffled.
    """
    generator = torch.Generator().manual_seed(seed)
    found = 0.0
    for _ in range(steps):
        common = torch.randn(ranks, 1, generator=generator)
        own = torch.randn(ranks, samples, generator=generator)
        scores = alike**0.5 * common + (1 - alike) ** 0.5 * own
        kept = round(gamma * ranks * samples)
        threshold = scores.flatten().kthvalue(ranks * samples - kept + 1).values
        found += float((scores >= threshold).sum(1).max()) / (gamma * samples)
    return found / steps
