"""How much time does SWP save? The appendix's g(N, beta) on MLPs of N layers, measured, and the fit of its form.

g is the share of SAM's time for the first pass and its backward that SWP saves, when each tensor takes a gradient with
probability beta. The paper's form is g = k1 (1 - beta) + k2 (1 - beta) / (N beta): k1 for the weight gradients that are
not computed, k2 for the layers before the first drawn one, where backward stops early.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from esam.optim.mask import independent

from ..engine.scale import ToyMLPs

WARM_UP = 3
"""Draws that are not counted: memory is found, and branches are learnt."""


@dataclass(frozen=True)
class Saving:
    """What SWP saved, of SAM's time, for one depth and beta."""

    layers: int
    beta: float
    saved: float
    """g(N, beta): 1 - SWP's total time / SAM's. At beta 1 they do the same, and anything but 0 is an error."""
    error: float
    """Its standard error, draws paired."""
    draws: int


@dataclass(frozen=True)
class Fit:
    """k1 and k2 by least squares, and the share of the variance of g that the form explains."""

    k1: float
    k2: float
    r_squared: float
    k2_error: float | None
    """The standard error of k2; None where it is not known."""


class ToyMLP(nn.Module):
    """Equal layers, each the sum of what its units make of the layers before it, one unit for each of them.

    One unit a layer is the appendix's case K = 1; two are its general case, with connections across layers.
    """

    def __init__(self, layers: int, width: int, units: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(units)) for _ in range(layers)
        )
        for weight in self.parameters():  # torch's own fade with depth, into numbers that a CPU is slow with
            nn.init.normal_(weight, std=(2 / width / units) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same shape."""
        before: list[Tensor] = [x] * len(self.layers[0])  # type: ignore[arg-type]
        for units in self.layers:
            made = [unit(h) for unit, h in zip(units, before, strict=True)]  # type: ignore[call-overload]
            before = [torch.relu(reduce(torch.add, made)), *before[:-1]]
        return before[0]


CASES = {"serial": 1, "crossed": 2}
"""Units a layer."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for as long as it lives; tell whether the C library can (glibc).

    Page faults that come and go with what is given back would else hide much of what is measured.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # the parameters of malloc.h
    sizes = {trim_threshold: 2**31 - 1, top_pad: 2**28, mmap_threshold: 2**30}
    return [mallopt(parameter, size) for parameter, size in sizes.items()] == [1, 1, 1]


def measure_savings(
    layers: Sequence[int], units: int, toys: ToyMLPs, progress: Callable[[int, int], None] = lambda done, whole: None
) -> list[Saving]:
    """Measure g(N, beta): forward, and backward with respect to the tensors drawn, against the same for all tensors.

    In every draw SAM and all betas are timed by processor time, in random order: each finds memory as any other left
    it, and what disturbs the machine disturbs them alike. What counts is the ratio of total times. Use one thread
    (torch.set_num_threads(1)) and, in a process that does nothing else, ``keep_freed_memory``.
    """
    generator = torch.Generator().manual_seed(0)
    found = []
    for number, depth in enumerate(layers):
        network = ToyMLP(depth, toys.width, units)
        weights = list(network.parameters())
        x = torch.randn(toys.batch, toys.width, generator=generator)
        everything = range(len(weights))
        seconds: dict[float | None, list[float]] = {beta: [] for beta in (SAM, *toys.betas)}
        for draw in range(-WARM_UP, toys.draws):
            for at in torch.randperm(len(seconds), generator=generator).tolist():
                beta = list(seconds)[at]
                whole = beta is SAM or beta == 1
                picks = everything if whole else independent(len(weights), beta or 1.0, generator).picks
                taken = _pass_seconds(network, weights, x, picks)
                if draw >= 0:
                    seconds[beta].append(taken)
            progress(number * toys.draws + max(0, draw + 1), len(layers) * toys.draws)
        found += [Saving(depth, b, *_saved(seconds[b], seconds[SAM]), toys.draws) for b in toys.betas]
    return found


SAM = None
"""Stands for a pass that takes the gradient of every tensor, among the betas."""


def _saved(swp: Sequence[float], sam: Sequence[float]) -> tuple[float, float]:
    """Return 1 - the ratio of the totals, and its standard error by the draws' deviations from that ratio.

    >>> _saved([1.0, 1.0, 2.0], [2.0, 2.0, 4.0])
    (0.5, 0.0)
    """
    ratio = sum(swp) / sum(sam)
    off = [a - ratio * b for a, b in zip(swp, sam, strict=True)]
    return 1 - ratio, stdev(off) / len(off) ** 0.5 / fmean(sam)


def fit_savings(savings: Sequence[Saving]) -> Fit:
    """Fit g = k1 (1 - beta) + k2 (1 - beta) / (N beta) by least squares, without a constant.

    R^2 is taken about the mean of g.
    """
    terms = torch.tensor([_terms(s.layers, s.beta) for s in savings], dtype=torch.float64)
    g = torch.tensor([s.saved for s in savings], dtype=torch.float64)
    k1, k2 = torch.linalg.lstsq(terms, g, driver="gelsd").solution.tolist()
    left = (g - terms @ torch.tensor([k1, k2], dtype=torch.float64)).square().sum()
    spread = (g - g.mean()).square().sum()
    free = len(savings) - 2
    error = math.sqrt(left / free * torch.linalg.inv(terms.T @ terms)[1, 1]) if free > 0 else None
    return Fit(k1, k2, float(1 - left / spread) if spread > 0 else float(left == 0), error)


def predicted(fit: Fit, layers: int, beta: float) -> float:
    """Return what the form gives for g(N, beta)."""
    first, second = _terms(layers, beta)
    return fit.k1 * first + fit.k2 * second


def _terms(layers: int, beta: float) -> tuple[float, float]:
    return 1 - beta, (1 - beta) / (layers * beta)


def _pass_seconds(network: nn.Module, weights: Sequence[Tensor], x: Tensor, picks: Sequence[int]) -> float:
    """Return the processor time of SAM's first pass: forward, and backward to the drawn tensors alone."""
    chosen = set(picks)
    for number, weight in enumerate(weights):
        weight.requires_grad_(number in chosen)
    drawn = [weights[number] for number in sorted(chosen)]
    start = time.process_time()
    torch.autograd.grad(network(x).square().mean(), drawn)
    return time.process_time() - start
