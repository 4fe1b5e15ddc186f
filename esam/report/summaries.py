"""Which runs are averaged together, which are compared in one table, and what did each method reach, at what cost?

Runs that differ in nothing but the seed form a summary: one line of the table. Summaries of the same condition form a
section: one table with its charts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from esam.optim import METHODS
from esam.report.measured import Difference, Measured, difference
from esam.report.settings import describe, flat_settings, values_by_name
from esam.train.record import RunRecord

FITTED = 0.95
"""A method fits its training data when it gets this share of the right labels right."""
TASK_SETTINGS = {"data", "label_noise", "model"}
"""Settings that name the task: results on different tasks never share a table."""


def _over_seeds(name: str) -> Any:
    """Return a property: a figure of the finished runs' ends, None where no run has it."""
    return property(lambda self: Measured.of(self.by_seed(name).values()))


@dataclass(frozen=True)
class MethodSummary:
    """One method under one condition: runs that differ in the seed alone. Figures are of the finished ones."""

    name: str
    """The name that people read, such as "ESAM (gamma 0.5)"."""
    method: str
    finished: tuple[RunRecord, ...]
    """One run a seed; of several, the one that started last."""
    unfinished: tuple[RunRecord, ...]
    repeats: int
    """Finished runs left out because a later one has their seed."""
    base: MethodSummary | None = None
    """What this one is measured against: the base optimizer; else the fastest method; None where nothing is timed."""
    processor_time: bool = False
    """Whether times in this comparison are the processor's, which other programs do not disturb, not the clock's."""

    test_loss, test_metric = _over_seeds("test_loss"), _over_seeds("test_metric")
    train_loss, train_accuracy = _over_seeds("train_loss"), _over_seeds("train_accuracy")
    sharpness, images_per_second = _over_seeds("sharpness"), _over_seeds("images_per_second")
    seconds, cpu_seconds = _over_seeds("seconds"), _over_seeds("cpu_seconds")
    forwards, backwards = _over_seeds("forwards"), _over_seeds("backwards")

    @property
    def accuracy(self) -> Measured | None:
        """Test accuracy after the last epoch, a share from 0 to 1."""
        return Measured.of(accuracy.get("last") for accuracy in self.by_seed("test_accuracy").values())

    @property
    def peak_memory(self) -> Measured | None:
        """Of an accelerator; a process on CPUs mostly holds its libraries, which says nothing of a method."""
        return None if self.on_cpus else Measured.of(self.by_seed("peak_memory").values())

    def by_seed(self, name: str) -> dict[int, Any]:
        """Return what the finished runs' ends say under a name; None where one says nothing."""
        return {run.seed: (run.end or {}).get(name) for run in self.finished}

    def drop(self, bits: str) -> Measured | None:
        """Return the accuracy lost when the weights are rounded to 8 or 4 bits."""
        return Measured.of(each["32"] - each[bits] for each in self.by_seed("rounded_accuracy").values() if each)

    @property
    def on_cpus(self) -> bool:
        """Whether no run had an accelerator."""
        return all(str(run.run["environment"].get("device", "cpu")) == "cpu" for run in self.finished)

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The runs that the page shows: averaged ones first."""
        return self.finished + self.unfinished

    @property
    def n(self) -> int:
        """How many finished runs there are."""
        return len(self.finished)

    @property
    def diverged(self) -> int:
        """How many runs ended because their loss was no finite number."""
        return sum(run.diverged for run in self.unfinished)

    def left_out(self) -> list[str]:
        """Say what an average over the runs does not hold."""
        items = [
            f"seed {run.seed}: {run.end.get('error') if run.end else f'unfinished after {run.last_epoch} epochs'}"
            for run in self.unfinished
        ]
        if self.repeats:
            items.append(f"{self.repeats} of the runs repeat a seed; the latest of each seed counts")
        return [f"{self.name}, {item}" for item in items]

    @property
    def is_base(self) -> bool:
        """Whether the others are measured against this one."""
        return self.base is not None and self.base.name == self.name

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
        seconds: Measured | None = self.cpu_seconds if self.processor_time else self.seconds
        return seconds

    @property
    def time_ratio(self) -> float | None:
        """Mean training time over the base's, both of the same kind."""
        ours, theirs = self.time, self.base and self.base.time
        return ours.mean / theirs.mean if ours and theirs and theirs.mean else None

    @property
    def counted_ratio(self) -> float | None:
        """What training should cost over the base's, by its passes and its number of epochs."""
        ours, theirs = self._units(), self.base and self.base._units()
        return ours / theirs if ours and theirs else None

    @property
    def fitted(self) -> bool:
        """Whether the training data are fitted, as far as is known; labels made wrong on purpose need not be."""
        noise = self.finished[0].config.get("label_noise") if self.finished else None
        right = 1 - noise if isinstance(noise, (int, float)) else 1
        return self.train_accuracy is None or self.train_accuracy.mean >= FITTED * right

    def _units(self) -> float | None:
        row, config = METHODS.get(self.method), self.runs[0].config
        if config.get("budget") is not None:  # all take the same time, whatever a step costs
            return None
        if row is not None:
            return row.units(config.get("settings", {})) * (config.get("epochs") or 1)
        passes = self.forwards, self.backwards
        return passes[0].mean + 2 * passes[1].mean if passes[0] and passes[1] else None


def summarise(records: Sequence[RunRecord]) -> dict[str, list[MethodSummary]]:
    """Sort records by method and by what sets their condition apart, "label noise 0.2"; the base comes first.

    A setting is a condition when it names the task, or when some method was run with several values of it. Where one
    name was run with several values of a setting of the method itself (rho, gamma), the value becomes part of the
    name. The condition is "" where there is only one.
    """
    settings = [flat_settings(record.config) for record in records]
    of_methods = {key for record in records for key in record.config.get("settings", {})}
    conditions: list[str] = []
    options: dict[str, list[str]] = {record.name: [] for record in records}
    for key, values in values_by_name(records, settings).items():
        names_with_several = [name for name, different in values.items() if len(different) > 1]
        of_the_task = key in TASK_SETTINGS and len({value for each in values.values() for value in each}) > 1
        if of_the_task or (names_with_several and key not in of_methods):
            conditions.append(key)
        else:
            for name in names_with_several:
                options[name].append(key)
    grouped: dict[str, dict[str, list[RunRecord]]] = {}
    for record, setting in zip(records, settings, strict=True):
        condition = describe({key: setting.get(key) for key in conditions})
        variant = describe({key: setting[key] for key in options[record.name] if setting.get(key) is not None})
        name = f"{record.name} ({variant})" if variant else record.name
        grouped.setdefault(condition, {}).setdefault(name, []).append(record)
    return {condition: _against_base(grouped[condition]) for condition in sorted(grouped, key=_natural)}


def _against_base(runs: dict[str, list[RunRecord]]) -> list[MethodSummary]:
    """Return the summaries of one condition in the registry's order, measured against the base, which comes first."""
    rank = {method: number for number, method in enumerate(METHODS)}
    methods = [_summary(name, of_name) for name, of_name in runs.items()]
    methods.sort(key=lambda summary: (rank.get(summary.method, len(rank)), _natural(summary.name)))
    processor = all(summary.cpu_seconds is not None and summary.on_cpus for summary in methods if summary.n)
    methods = [dataclasses.replace(summary, processor_time=processor) for summary in methods]
    timed = [summary for summary in methods if summary.images_per_second is not None]
    fastest = max(timed, key=lambda summary: summary.images_per_second.mean, default=None)
    base = next((summary for summary in methods if summary.method == "base"), fastest)
    methods = [dataclasses.replace(summary, base=base) for summary in methods]
    return sorted(methods, key=lambda summary: not summary.is_base)


def _summary(name: str, runs: Iterable[RunRecord]) -> MethodSummary:
    runs = sorted(runs, key=lambda run: (run.seed, str(run.run.get("started", ""))))
    finished = {run.seed: run for run in runs if run.finished}
    return MethodSummary(
        name,
        runs[0].method,
        finished=tuple(finished.values()),
        unfinished=tuple(run for run in runs if not run.finished),
        repeats=sum(run.finished for run in runs) - len(finished),
    )


def _natural(text: str) -> list[str | float]:
    """A key that sorts numbers within words by their value."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]
