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
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from esam.optim.mask import independent

from ..engine.scale import ToyMLPs

REPEATS = 3
"""Equal passes, of which the fastest counts."""


@dataclass(frozen=True)
class Saving:
    """What SWP saved, of SAM's time, for one depth and beta."""

    layers: int
    beta: float
    saved: float
    """g(N, beta), the mean over draws of 1 - SWP's time / SAM's."""
    error: float
    """Its standard error."""
    draws: int


@dataclass(frozen=True)
class Fit:
    """k1 and k2 by least squares, and the share of the variance of g that the form explains."""

    k1: float
    k2: float
    r_squared: float
    k2_error: float | None
    """The standard error of k2; None where it is not known."""


def _unit(width: int, inputs: int) -> nn.Linear:
    """Return one of the layer's ``inputs`` maps, scaled so that signals keep their size however deep the network is.

    By torch's own initial weights they fade into numbers that a CPU is slow with, and then to zero.
    """
    unit = nn.Linear(width, width, bias=False)
    nn.init.normal_(unit.weight, std=(2 / width / inputs) ** 0.5)
    return unit


class Serial(nn.Module):
    """One unit a layer, each layer connected to the next: the appendix's case K = 1."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_unit(width, inputs=1) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same shape."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Crossed(nn.Module):
    """Several units a layer and connections across layers: the appendix's general case, here K = 2.

    A layer adds what its first unit makes of the layer before to what its second makes of the layer before that.
    """

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.near = nn.ModuleList(_unit(width, inputs=2) for _ in range(layers))
        self.far = nn.ModuleList(_unit(width, inputs=2) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same shape."""
        before = x
        for near, far in zip(self.near, self.far, strict=True):
            x, before = torch.relu(near(x) + far(before)), x
        return x


CASES: dict[str, Callable[[int, int], nn.Module]] = {"serial": Serial, "crossed": Crossed}
"""(layers, width) -> network whose layers are all alike."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for as long as it lives; tell whether the C library can (glibc).

    Page faults that come and go with what is given back would else hide much of what is measured.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # the parameters of malloc.h
    sizes = ((trim_threshold, 2**31 - 1), (top_pad, 2**28), (mmap_threshold, 2**30))
    taken = [bool(mallopt(parameter, size)) for parameter, size in sizes]
    return all(taken)


def measure_savings(
    build: Callable[[int, int], nn.Module],
    layers: Sequence[int],
    toys: ToyMLPs,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> list[Saving]:
    """Measure g(N, beta): forward, and backward with respect to the tensors drawn, against the same for all tensors.

    In every draw SAM and all betas are timed in turn, by processor time, and the ratio is taken within the draw: what
    disturbs the machine disturbs them alike. Each counts with the fastest of a few equal passes: the first finds memory
    as another left it, and any of them can be disturbed. Use one thread (torch.set_num_threads(1)) and, in a process
    that does nothing else, ``keep_freed_memory``.
    """
    draws = toys.draws
    generator = torch.Generator().manual_seed(0)
    found = []
    for number, depth in enumerate(layers):
        network = build(depth, toys.width)
        weights = list(network.parameters())
        x = torch.randn(toys.batch, toys.width, generator=generator)
        everything = range(len(weights))
        shares: dict[float, list[float]] = {beta: [] for beta in toys.betas}
        for draw in range(draws):
            whole = _pass_seconds(network, weights, x, everything)
            for beta in toys.betas:
                picks = everything if beta == 1 else independent(len(weights), beta, generator).picks
                shares[beta].append(1 - _pass_seconds(network, weights, x, picks) / whole)
            progress(number * draws + draw + 1, len(layers) * draws)
        found += [Saving(depth, b, fmean(s), stdev(s) / len(s) ** 0.5, len(s)) for b, s in shares.items()]
    return found


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
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        torch.autograd.grad(network(x).square().mean(), drawn)
        seconds.append(time.process_time() - start)
    return min(seconds)
