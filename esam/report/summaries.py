"""What did each method reach, and at what cost?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from esam.optim import METHODS
from esam.report.groups import SeedGroup, sections
from esam.report.measured import Difference, Measured, difference
from esam.train.record import RunRecord

FITTED = 0.95
"""A method fits its training data when it gets this share of the right labels right."""
BITS = ("8", "4")
"""Weights rounded to so many bits, where a record says what they reach."""
QUALITY = ("test_loss", "test_metric", "train_loss", "train_accuracy", "sharpness")
COST = ("images_per_second", "seconds", "cpu_seconds", "peak_memory", "forwards", "backwards")


@dataclass(frozen=True)
class MethodSummary:
    """One method under one condition; finished runs only. A measurement is None where no run has it."""

    group: SeedGroup
    accuracy: Measured | None
    """Test accuracy after the last epoch, a share from 0 to 1."""
    test_loss: Measured | None
    test_metric: Measured | None
    """A user's own measure on the test data."""
    train_loss: Measured | None
    train_accuracy: Measured | None
    sharpness: Measured | None
    images_per_second: Measured | None
    seconds: Measured | None
    cpu_seconds: Measured | None
    peak_memory: Measured | None
    """Of an accelerator; a process on CPUs mostly holds its libraries, which says nothing of a method."""
    forwards: Measured | None
    backwards: Measured | None
    drops: dict[str, Measured]
    """Accuracy lost when the weights are rounded to 8 and 4 bits."""
    base: MethodSummary | None = None
    """What this one is measured against: the base optimizer; else the fastest method; None where nothing is timed."""
    processor_time: bool = False
    """Whether times in this comparison are the processor's, which other programs do not disturb, not the clock's."""

    @property
    def name(self) -> str:
        """The name that people read, such as "ESAM (gamma 0.5)"."""
        return self.group.name

    @property
    def n(self) -> int:
        """How many finished runs there are."""
        return len(self.group.finished)

    @property
    def diverged(self) -> int:
        """How many runs ended because their loss was no finite number."""
        return sum(run.diverged for run in self.group.unfinished)

    @property
    def is_base(self) -> bool:
        """Whether the others are measured against this one."""
        return self.base is not None and self.base.group is self.group

    @property
    def score(self) -> Measured | None:
        """What methods are ranked by, higher being better: per cent of test accuracy, else minus the test loss."""
        return self.accuracy.times(100) if self.accuracy is not None else self.test_loss and self.test_loss.times(-1)

    @property
    def lead(self) -> Difference | None:
        """How far the score is above the base's, with a 95 % interval; None with a single seed."""
        return None if self.base is None or self.is_base else difference(self.score, self.base.score)

    @property
    def gain(self) -> Difference | None:
        """The lead in percentage points of accuracy; None where the targets are not classes."""
        return None if self.accuracy is None else self.lead

    @property
    def time(self) -> Measured | None:
        """Seconds of training, of the processor or of the clock as ``processor_time`` says."""
        return self.cpu_seconds if self.processor_time else self.seconds

    @property
    def time_ratio(self) -> float | None:
        """Mean training time over the base's, both of the same kind."""
        ours, theirs = self.time, self.base and self.base.time
        return ours.mean / theirs.mean if ours and theirs and theirs.mean else None

    @property
    def counted_ratio(self) -> float | None:
        """What training should cost over the base's, by its passes and its number of epochs."""
        ours, theirs = self._units(), self.base._units() if self.base else None
        return ours / theirs if ours and theirs else None

    @property
    def fitted(self) -> bool:
        """Whether the training data are fitted, as far as is known; labels made wrong on purpose need not be."""
        noise = self.group.finished[0].config.get("label_noise") if self.group.finished else None
        right = 1 - noise if isinstance(noise, (int, float)) else 1
        return self.train_accuracy is None or self.train_accuracy.mean >= FITTED * right

    def effective(self) -> dict[str, Any]:
        """Return the method's settings as they took effect."""
        run = self.group.runs[0]
        recorded = (run.run.get("effective") or {}).get("method")
        if recorded is None and self.group.method in METHODS:
            recorded = METHODS[self.group.method].effective(run.config.get("settings", {}))
        return dict(recorded or {})

    def _units(self) -> float | None:
        row = METHODS.get(self.group.method)
        if row is not None:
            config = self.group.runs[0].config
            return row.units(config.get("settings", {})) * (config.get("epochs") or 1)
        passes = self.forwards, self.backwards
        return passes[0].mean + 2 * passes[1].mean if passes[0] and passes[1] else None


def summarise(records: Sequence[RunRecord]) -> dict[str, list[MethodSummary]]:
    """Average the finished runs of each method, condition by condition; the base comes first."""
    return {title: _against_base([_summary(group) for group in groups]) for title, groups in sections(records).items()}


def _against_base(methods: Sequence[MethodSummary]) -> list[MethodSummary]:
    finished = [one for one in methods if one.n]
    processor = all(one.cpu_seconds is not None and _on_cpus(one.group.finished) for one in finished)
    methods = [dataclasses.replace(one, processor_time=processor) for one in methods]
    speeds = [(one.images_per_second.mean, one) for one in methods if one.images_per_second is not None]
    fastest = max(speeds, key=lambda pair: pair[0])[1] if speeds else None
    base = next((one for one in methods if one.group.method == "base"), fastest)
    return sorted((dataclasses.replace(one, base=base) for one in methods), key=lambda one: not one.is_base)


def _summary(group: SeedGroup) -> MethodSummary:
    ends = [run.end for run in group.finished if run.end is not None]
    figures: dict[str, Any] = {key: Measured.of(end.get(key) for end in ends) for key in QUALITY + COST}
    figures["peak_memory"] = None if _on_cpus(group.finished) else figures["peak_memory"]
    drops = {bits: Measured.of(_drop(end, bits) for end in ends) for bits in BITS}
    return MethodSummary(
        group,
        accuracy=Measured.of(end["test_accuracy"].get("last") for end in ends),
        drops={bits: drop for bits, drop in drops.items() if drop is not None},
        **figures,
    )


def _drop(end: dict[str, Any], bits: str) -> float | None:
    rounded = end.get("rounded_accuracy") or {}
    full, few = rounded.get("32"), rounded.get(bits)
    return full - few if full is not None and few is not None else None


def _on_cpus(runs: Sequence[RunRecord]) -> bool:
    return all(str(run.run["environment"].get("device", "cpu")) == "cpu" for run in runs)
