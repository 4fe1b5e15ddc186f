"""What did each method reach, and at what cost? The comparison as data, for the page and for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from esam.report import words
from esam.report.groups import Group, Section, compare
from esam.train.record import RunRecord

PLAIN_METHODS = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class Spread:
    """A measurement over seeds: mean, sample standard deviation (None for a single seed) and the number of seeds."""

    mean: float
    std: float | None
    n: int

    def scaled(self, factor: float) -> Spread:
        """The same measurement in another unit."""
        return Spread(self.mean * factor, None if self.std is None else self.std * factor, self.n)


@dataclass(frozen=True)
class Row:
    """One method under one condition; finished runs only. A Spread is None where no run measured it."""

    condition: str
    name: str
    method: str
    is_base: bool
    n: int
    unfinished: int
    accuracy: Spread | None
    """Test accuracy after the last epoch, a share from 0 to 1."""
    best: Spread | None
    """Test accuracy of each run's best epoch: chosen on the test data, so it flatters."""
    gain: float | None
    """Percentage points of `accuracy` over the base."""
    train_loss: Spread | None
    train_accuracy: Spread | None
    sharpness: Spread | None
    images_per_second: Spread | None
    seconds: Spread | None
    time_ratio: float | None
    """Mean training time over the base's."""
    peak_memory: Spread | None
    forwards: Spread | None
    backwards: Spread | None


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, a longer explanation, and how a row fills it."""

    title: str
    explanation: str
    cell: Callable[[Row], str]


def summarise(records: Sequence[RunRecord]) -> list[Row]:
    """Average the finished runs of each method, condition by condition; the base comes first."""
    return [row for section in compare(records) for row in section_rows(section)]


def section_rows(section: Section) -> list[Row]:
    """The rows of one condition, the base first."""
    base = base_of(section.groups)
    accuracy = _spread(base, _accuracy("last")) if base else None
    seconds = _spread(base, _number("seconds")) if base else None
    rows = [_row(section.title, group, group is base, accuracy, seconds) for group in section.groups]
    return sorted(rows, key=lambda row: not row.is_base)


def base_of(groups: Sequence[Group]) -> Group | None:
    """The group that the others are measured against.

    It is the one whose config says `"base": true`; else the first plain optimizer (SGD, Adam); else the fastest.
    """
    for group in groups:
        if any(run.config.get("base") is True for run in (*group.finished, *group.unfinished)):
            return group
    for method in PLAIN_METHODS:
        for group in groups:
            if group.method == method:
                return group
    speeds = {group.name: _spread(group, _number("images_per_second")) for group in groups}
    timed = [group for group in groups if speeds[group.name]]
    return max(timed, key=lambda group: speeds[group.name].mean, default=None)  # type: ignore[union-attr]


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that at least one row fills, in reading order."""
    base = next((row.name for row in rows if row.is_base), "base")
    everything = [
        Column("Seeds", "Finished runs that differ in the seed only", lambda row: str(row.n)),
        Column("Test acc., %", "Test accuracy after the last epoch", lambda row: _percent(row, row.accuracy)),
        Column(
            "Best, %", "Test accuracy of each run's best epoch, which flatters", lambda row: _percent(row, row.best)
        ),
        Column("Train loss", "Loss on the training data at the end", lambda row: _measured(row, row.train_loss)),
        Column(
            "Train acc., %", "Accuracy on the training data at the end", lambda row: _percent(row, row.train_accuracy)
        ),
        Column("Sharpness", "Sharpness at the end; lower is flatter", lambda row: _measured(row, row.sharpness)),
        Column("Images/s", "Training images a second", lambda row: _measured(row, row.images_per_second)),
        Column("Time", "Time spent in training", lambda row: _mean(words.duration, row.seconds)),
        Column(f"Time vs {base}", f"Training time over that of {base}", _ratio),
        Column("Peak memory", "Highest memory in use", lambda row: _mean(words.memory, row.peak_memory)),
        Column("Forward", "Forward passes", lambda row: words.counted(row.forwards)),
        Column("Backward", "Backward passes", lambda row: words.counted(row.backwards)),
    ]
    return [column for column in everything if any(column.cell(row) != words.ABSENT for row in rows)]


def _row(condition: str, group: Group, is_base: bool, base_accuracy: Spread | None, base_seconds: Spread | None) -> Row:
    accuracy = _spread(group, _accuracy("last"))
    seconds = _spread(group, _number("seconds"))
    return Row(
        condition=condition,
        name=group.name,
        method=group.method,
        is_base=is_base,
        n=len(group.finished),
        unfinished=len(group.unfinished),
        accuracy=accuracy,
        best=_spread(group, _accuracy("best")),
        gain=100 * (accuracy.mean - base_accuracy.mean) if accuracy and base_accuracy else None,
        train_loss=_spread(group, _number("train_loss")),
        train_accuracy=_spread(group, _number("train_accuracy")),
        sharpness=_spread(group, _number("sharpness")),
        images_per_second=_spread(group, _number("images_per_second")),
        seconds=seconds,
        time_ratio=seconds.mean / base_seconds.mean if seconds and base_seconds and base_seconds.mean else None,
        peak_memory=_spread(group, _number("peak_memory")),
        forwards=_spread(group, _number("forwards")),
        backwards=_spread(group, _number("backwards")),
    )


Pick = Callable[[dict[str, Any]], float | None]


def _number(key: str) -> Pick:
    return lambda end: end.get(key)


def _accuracy(which: str) -> Pick:
    return lambda end: end["test_accuracy"].get(which)


def _spread(group: Group, pick: Pick) -> Spread | None:
    found = [pick(run.end) for run in group.finished if run.end is not None]
    values = [float(value) for value in found if value is not None]
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def _percent(row: Row, spread: Spread | None) -> str:
    return words.percent(spread, row_n=row.n)


def _measured(row: Row, spread: Spread | None) -> str:
    return words.measured(spread, row_n=row.n)


def _mean(write: Callable[[float], str], spread: Spread | None) -> str:
    return words.ABSENT if spread is None else write(spread.mean)


def _ratio(row: Row) -> str:
    return words.ABSENT if row.time_ratio is None else f"{row.time_ratio:.2f}×"
