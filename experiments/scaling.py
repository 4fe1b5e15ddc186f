"""What would a step of each method take on many GPUs? A model for docs/scaling.md; nothing of it was measured there.

A step computes for its counted passes, sums gradients while its last backward runs (hidden), and sums others between
two passes, where everything waits (exposed). Machines of eight GPUs; the slowest link on the way counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Exchange:
    """What the ranks exchange in a step: gradients (1: a whole one) that are exposed, messages of a few numbers."""

    exposed: float
    small: float
    last: float
    """Share of the batch in the last pass, under which one sum of gradients hides."""


EXCHANGES = {
    ("base", "rank"): Exchange(0, 0, 1),
    ("sam", "rank"): Exchange(0, 0, 1),
    ("sam", "global"): Exchange(1, 1, 1),
    ("looksam", "rank"): Exchange(0.2, 0.2, 1),
    ("looksam", "global"): Exchange(0.2, 0.2, 1),
    ("esam-swp", "rank"): Exchange(0, 1, 1),
    ("esam-swp", "global"): Exchange(0.6, 1, 1),
    ("esam-sds", "rank"): Exchange(0, 0, 0.5),
    ("esam-sds", "global"): Exchange(1, 1, 0.5),
    ("esam", "rank"): Exchange(0, 1, 0.5),
    ("esam", "global"): Exchange(0.6, 1, 0.5),
    ("slicesam", "rank"): Exchange(0, 0, 0.125),
    ("slicesam", "global"): Exchange(2, 2, 0.125),
}
"""By method, and by whether each rank perturbs by its own gradient; tests count it on two ranks."""


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
    counts = (8, 64, 1024)
    rows = []
    for (name, way), exchange in EXCHANGES.items():
        times = [step_seconds(name, way, net, n) / step_seconds("base", "rank", net, n) for net in NETS for n in counts]
        sums = f"1 + {exchange.exposed:g}" if exchange.exposed else "1"
        rows.append((f"`{name}`, {way}", sums, f"{exchange.small:g}", *(f"{time:.2f}" for time in times)))
    columns = [f"{net.title}: {n:,}" for net in NETS for n in counts]
    return Sheet("", ("step by", "gradients", "small", *columns), tuple(rows))


def measured_table(record: dict[str, Any]) -> Sheet:
    """Return measured steps: alone, in two processes side by side, on two ranks; and what these exchanged."""
    rows = []
    for title, took in record["steps"].items():
        name, way = title.split(", ")
        counted = record["counted"][title]
        times = (f"{1e3 * took[key]:.0f}" for key in ("alone", "beside", "ranks"))
        rows.append((f"`{name}`, {way}", *times, f"{counted['gradients']:.3g}", f"{counted['small']:.3g}"))
    return Sheet("", ("step by", "alone, ms", "side by side", "two ranks", "gradients", "small"), tuple(rows))


def memory_table(record: dict[str, Any]) -> Sheet:
    """Return what a step holds at its highest beyond weights and the base's state, in units of the weights."""
    held = record["held"]
    rows = [(f"`{name}`", f"{1 + peak - held['base']:.1f}") for name, peak in held.items()]
    return Sheet("", ("step by", "held, in weights"), tuple(rows))
