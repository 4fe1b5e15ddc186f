"""What would a step of each method take on many GPUs? A model for docs/speed.md; nothing of it was measured there.

A step computes for its counted passes, sums gradients while its last backward runs (hidden), and sums others between
two passes, where everything waits (exposed). Machines of eight GPUs; the slowest link on the way counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from esam.optim import METHODS
from esam.report.sheets import Sheet

INSIDE, BETWEEN, DEVICES = 200e9, 20e9, 8
"""Assumed: bytes a second within a machine and between machines, for each of its GPUs."""
LATENCY = 30e-6
OVERLAP = 0.8
"""Assumed: the share of a backward that a sum of gradients can hide under."""


@dataclass(frozen=True)
class Net:
    """A net on one GPU: bytes of its gradient, seconds of a base step for each sample, samples on each GPU."""

    title: str
    gradient: float
    sample_seconds: float
    samples: int


NETS = (
    Net("ResNet-50, 64 images", 4 * 25.6e6, 1 / 2400, 64),
    Net("ViT-L/16, 32 images", 4 * 304e6, 1 / 350, 32),
)
"""Assumed: 2,400 and 350 images a second, bf16 compute, float32 gradients."""
RANKS = (8, 1024)


class Exchange(NamedTuple):
    """What the ranks exchange in a step; tests count the first two on two ranks."""

    exposed: float
    """Gradients (1: a whole one) that are summed between passes."""
    small: float
    """Messages of a few numbers."""
    last: float
    """Share of the batch in the last pass, under which one sum of gradients hides."""


EXCHANGES = {
    ("base", "rank"): Exchange(0, 0, 1),
    ("sam", "rank"): Exchange(0, 0, 1),
    ("sam", "global"): Exchange(1, 1, 1),
    ("esam", "rank"): Exchange(0, 1, 0.5),
    ("esam", "global"): Exchange(0.6, 1, 0.5),
    ("slicesam", "rank"): Exchange(0, 0, 0.125),
    ("slicesam", "global"): Exchange(2, 2, 0.125),
}
"""By method, and by whether each rank perturbs by its own gradient or all by the mean."""


def step_seconds(name: str, way: str, net: Net, ranks: int) -> float:
    """Return the time of a step on each of the ranks."""
    exchange, base = EXCHANGES[name, way], net.sample_seconds * net.samples
    rate = INSIDE if ranks <= DEVICES else BETWEEN
    summed = 2 * (ranks - 1) / ranks * net.gradient / rate
    hidden = OVERLAP * 2 / 3 * base * exchange.last
    waiting = exchange.exposed * summed + max(0.0, summed - hidden) + exchange.small * LATENCY * math.log2(ranks)
    return METHODS[name].units() / 3 * base + waiting


def many_table() -> Sheet:
    """Return what a step of each method exchanges, and its time over the base's on many GPUs."""
    rows = []
    for (name, way), exchange in EXCHANGES.items():
        times = [step_seconds(name, way, net, n) / step_seconds("base", "rank", net, n) for net in NETS for n in RANKS]
        gradients = f"1 + {exchange.exposed:g}" if exchange.exposed else "1"
        rows.append((f"`{name}`, {way}", gradients, *(f"{time:.2f}" for time in times)))
    columns = [f"{net.title}: {n:,} GPUs" for net in NETS for n in RANKS]
    return Sheet("", ("step by", "gradients", *columns), tuple(rows))


def measured_table(record: dict[str, Any]) -> Sheet:
    """Return measured steps: alone, and on two ranks; and what a step holds in memory, in units of the weights."""
    rows = []
    for title, took in record["steps"].items():
        name, way = title.split(", ")
        times = (f"{1e3 * took[key]:.0f}" for key in ("alone", "beside", "ranks"))
        rows.append((f"`{name}`, {way}", *times, f"{1 + record['held'][name] - record['held']['base']:.1f}"))
    return Sheet("", ("step by", "alone, ms", "side by side, ms", "two ranks, ms", "held, in weights"), tuple(rows))
