"""What does a step of each method take on N devices: time, bytes moved, memory? A model, its assumptions named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from esam.optim import METHODS

from .exchange import Perturbation, exchange, passes


@dataclass(frozen=True)
class Links:
    """How fast devices exchange: the slowest link on the way counts."""

    inside: float
    """Bytes a second that a device sends within a machine."""
    between: float
    """The same between machines."""
    devices: int
    """Devices in a machine."""
    latency_inside: float
    """Seconds of one message within a machine."""
    latency_between: float
    overlap: float
    """Share of a pass's time that an exchange can hide under."""

    def rate(self, ranks: int) -> float:
        """Return the bytes a second of a ring over these many devices."""
        return self.inside if ranks <= self.devices else self.between

    def latency(self, ranks: int) -> float:
        """Return the seconds of an exchange of a few numbers: up a tree and down again."""
        within = min(ranks, self.devices)
        hops = math.log2(within), math.log2(max(1.0, ranks / self.devices))
        return 2 * (hops[0] * self.latency_inside + hops[1] * self.latency_between)

    def summed(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-reduce."""
        return 2 * self.parted(size, ranks)

    def parted(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-gather, or of a reduce-scatter."""
        if ranks == 1:
            return 0.0
        return (ranks - 1) / ranks * size / self.rate(ranks) + self.latency(ranks) / 2


@dataclass(frozen=True)
class Workload:
    """What is trained."""

    name: str
    weights: float
    """Bytes of all weights, and so of a gradient."""
    sample_seconds: float
    """Of the base's step, for each sample on one device."""
    step_seconds: float = 0.0
    """Of the base's step, whatever the number of samples."""

    def base_seconds(self, samples: float) -> float:
        """Return the time of the base's step without any exchange."""
        return self.step_seconds + self.sample_seconds * samples


@dataclass(frozen=True)
class StepTime:
    """Where the time of a step goes, in seconds."""

    compute: float
    waiting: float
    """For exchanges that no pass hides."""
    moved: float
    """Bytes that each device sends."""

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.compute + self.waiting


def step_time(
    name: str,
    work: Workload,
    links: Links,
    *,
    ranks: int,
    samples: float,
    perturbation: Perturbation = "rank",
    strategy: Literal["ddp", "fsdp"] = "ddp",
    settings: Mapping[str, Any] | None = None,
) -> StepTime:
    """Return the time of a step with this many samples on each of the ranks.

    Compute follows the counted passes (the base 3). Under DistributedDataParallel the sum of gradients hides under the
    last backward, which is two thirds of a pass over the samples that this pass has; the sum that a global eps needs
    hides under nothing. Under fully_shard each exchange hides under the passes.
    """
    given = exchange(name, settings, perturbation=perturbation, strategy=strategy)
    compute = METHODS[name].units(settings) / 3 * work.base_seconds(samples)
    moved = given.moved(work.weights, ranks)
    if ranks == 1:
        return StepTime(compute, 0.0, moved)
    small = given.small * links.latency(ranks)
    if strategy == "fsdp":
        needed = (given.gathers + given.scatters) * links.parted(work.weights, ranks)
        return StepTime(compute, max(0.0, needed - links.overlap * compute) + small, moved)
    one = links.summed(work.weights, ranks)
    backward = 2 / 3 * work.base_seconds(samples * passes(name, settings).last)
    waiting = given.exposed * one + given.hidden * max(0.0, one - links.overlap * backward)
    return StepTime(compute, waiting + small, moved)


def efficiency(name: str, work: Workload, links: Links, *, ranks: int, samples: float, **how: Any) -> float:
    """Return the samples a second of each device, as a share of what one device alone does with the same method."""
    alone = step_time(name, work, links, ranks=1, samples=samples, **how).seconds
    return alone / step_time(name, work, links, ranks=ranks, samples=samples, **how).seconds


def most_ranks(name: str, work: Workload, links: Links, *, batch: int, least: float = 0.8, **how: Any) -> int:
    """Return the most devices (a power of two) that one batch can be parted on with this efficiency at least."""
    found, ranks = 1, 1
    alone = step_time(name, work, links, ranks=1, samples=batch, **how).seconds
    while ranks < batch:
        ranks *= 2
        there = step_time(name, work, links, ranks=ranks, samples=batch / ranks, **how).seconds
        if alone / (ranks * there) >= least:
            found = ranks
    return found


def memory(
    held: float, work: Workload, *, ranks: int = 1, state: float = 1.0, strategy: Literal["ddp", "fsdp"] = "ddp"
) -> float:
    """Return the bytes of weights, the base's state and what a step holds at its highest, on each device.

    ``held`` is what a step holds beyond weights and state, in units of the weights, as measured; ``state`` the base's,
    1 for SGD with momentum and 2 for AdamW. Activations come on top: those of the largest piece of a device's samples.
    """
    whole = (1 + state + held) * work.weights
    return whole / ranks if strategy == "fsdp" else whole
