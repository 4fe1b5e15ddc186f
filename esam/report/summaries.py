"""What did each method reach, and at what cost?"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from esam.report.groups import SeedGroup, sections
from esam.train.record import RunRecord

FITTED = 0.95
"""A method fits its training data when it gets this share of the right labels right."""

QUALITY = ("test_loss", "test_metric", "train_loss", "train_accuracy", "sharpness")
COST = ("images_per_second", "seconds", "cpu_seconds", "peak_memory", "forwards", "backwards")


@dataclass(frozen=True)
class Spread:
    """A measurement over seeds: mean, sample standard deviation (None for a single seed) and the number of seeds."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class MethodSummary:
    """One method under one condition; finished runs only. A Spread is None where no run measured it."""

    group: SeedGroup
    accuracy: Spread | None
    """Test accuracy after the last epoch, a share from 0 to 1."""
    best: Spread | None
    """Test accuracy of each run's best epoch: chosen on the test data, so it flatters. None where runs have but one."""
    test_loss: Spread | None
    test_metric: Spread | None
    """A user's own measure on the test data."""
    train_loss: Spread | None
    train_accuracy: Spread | None
    sharpness: Spread | None
    images_per_second: Spread | None
    seconds: Spread | None
    cpu_seconds: Spread | None
    peak_memory: Spread | None
    forwards: Spread | None
    backwards: Spread | None
    base: MethodSummary | None
    """What this one is measured against: the base optimizer; else the fastest method; None where nothing is timed."""

    @property
    def name(self) -> str:
        """The name that people read, such as "ESAM (gamma 0.5)"."""
        return self.group.name

    @property
    def n(self) -> int:
        """How many finished runs there are."""
        return len(self.group.finished)

    @property
    def is_base(self) -> bool:
        """Whether the others are measured against this one."""
        return self.base is not None and self.base.group is self.group

    @property
    def gain(self) -> float | None:
        """Percentage points of accuracy over the base."""
        ours, theirs = self.accuracy, self.base and self.base.accuracy
        return 100 * (ours.mean - theirs.mean) if ours and theirs else None

    @property
    def time_ratio(self) -> float | None:
        """Mean training time over the base's: of the processor where both were on CPUs, not of the clock."""
        if self.base is None:
            return None
        ours, theirs = self.seconds, self.base.seconds
        if self.on_cpus and self.base.on_cpus and self.cpu_seconds and self.base.cpu_seconds:
            ours, theirs = self.cpu_seconds, self.base.cpu_seconds
        return ours.mean / theirs.mean if ours and theirs and theirs.mean else None

    @property
    def on_cpus(self) -> bool:
        """Whether no accelerator did the work, so that processor time tells all of it."""
        return all(str(run.run["environment"].get("device", "cpu")) == "cpu" for run in self.group.finished)

    @property
    def fitted(self) -> bool:
        """Whether the training data are fitted, as far as is known; labels made wrong on purpose need not be."""
        noise = self.group.finished[0].config.get("label_noise") if self.group.finished else None
        right = 1 - noise if isinstance(noise, (int, float)) else 1
        return self.train_accuracy is None or self.train_accuracy.mean >= FITTED * right


def summarise(records: Sequence[RunRecord]) -> dict[str, list[MethodSummary]]:
    """Average the finished runs of each method, condition by condition; the base comes first."""
    return {title: _against_base([_summary(group) for group in groups]) for title, groups in sections(records).items()}


def _against_base(methods: Sequence[MethodSummary]) -> list[MethodSummary]:
    speeds = [(one.images_per_second.mean, one) for one in methods if one.images_per_second is not None]
    fastest = max(speeds, key=lambda pair: pair[0])[1] if speeds else None
    base = next((one for one in methods if one.group.method == "base"), fastest)
    return sorted((dataclasses.replace(one, base=base) for one in methods), key=lambda one: not one.is_base)


def _summary(group: SeedGroup) -> MethodSummary:
    ends = [run.end for run in group.finished if run.end is not None]
    several = any(sum(line.get("test_accuracy") is not None for line in run.epochs) > 1 for run in group.finished)
    return MethodSummary(
        group,
        accuracy=spread_of(end["test_accuracy"].get("last") for end in ends),
        best=spread_of(end["test_accuracy"].get("best") for end in ends if several),
        base=None,
        **{key: spread_of(end.get(key) for end in ends) for key in QUALITY + COST},
    )


def spread_of(found: Iterable[float | None]) -> Spread | None:
    """Return mean, deviation and count of the values that are known; None where none is."""
    values = [float(value) for value in found if value is not None]
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))
