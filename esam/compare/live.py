"""What does a person see while the runs go on, and at the end?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from esam.report.table import Column, Row, columns, summarise
from esam.report.words import duration, summary
from esam.train.record import RunRecord

from .launch import Launcher
from .plan import PlannedRun


def watch(launcher: Launcher, console: Console) -> None:
    """Run everything under a live table; in plain lines where there is no terminal."""
    if not console.is_terminal:
        launcher(_PlainLines(launcher.runs, console))
        return
    board = _Board(launcher.runs)
    with Live(console=console, refresh_per_second=4, get_renderable=board.render):
        launcher()


def show_results(runs: Sequence[PlannedRun], console: Console) -> None:
    """Print the table of the finished runs, one for each condition, and a sentence about them."""
    records = [record for run in runs if (record := run.record()) is not None]
    rows = summarise(records)
    for condition in dict.fromkeys(row.condition for row in rows):
        here = [row for row in rows if row.condition == condition]
        for table in results_tables(here, condition, console.width):
            console.print(table)
        console.print(summary(here), highlight=False, markup=False)


def results_tables(rows: Sequence[Row], title: str, width: int) -> list[Table]:
    """Return the results in the columns that the report has too, in as many tables as the width asks for."""
    shown = columns(rows)
    names = [row.name for row in rows]
    first = _width("Method", names)
    parts: list[list[Column]] = [[]]
    room = width - first
    for column in shown:
        taken = _width(column.title, [column.cell(row) for row in rows])
        if taken > room and parts[-1]:
            parts.append([])
            room = width - first
        parts[-1].append(column)
        room -= taken
    tables: list[Table] = []
    for part in parts:
        table = Table(title=title if title and not tables else None, title_justify="left")
        table.add_column("Method", no_wrap=True)
        for column in part:
            table.add_column(column.title, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(row.name, *(column.cell(row) for column in part))
        tables.append(table)
    return tables


def _width(title: str, cells: Sequence[str]) -> int:
    return max(len(title), *map(len, cells)) + 3  # a rule and two spaces


class _Board:
    """A bar for each run, its last figures, and the time left for all of them."""

    def __init__(self, runs: Sequence[PlannedRun]) -> None:
        self.runs = runs
        self.started = time.monotonic()
        self.before = _share_done(runs)

    def render(self) -> RenderableType:
        """Return the board as it is now."""
        bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[last]}"),
        )
        for run in self.runs:
            record = run.record()
            name = f"{run.config.method}, seed {run.config.seed}"
            bars.add_task(name, total=100, completed=round(100 * _done(run, record)), last=_figures(record))
        return Group(bars, self._time_left())

    def _time_left(self) -> str:
        done = _share_done(self.runs)
        spent = time.monotonic() - self.started
        if done >= 1:
            return f"done in {duration(spent)}"
        if done <= self.before:
            return "time left: not known yet"
        return f"time left: about {duration(spent * (1 - done) / (done - self.before))}"


class _PlainLines:
    """A line for each epoch that is new since the last look."""

    def __init__(self, runs: Sequence[PlannedRun], console: Console) -> None:
        self.runs, self.console = runs, console
        self.seen = {run.folder: _epochs(run.record()) for run in runs}

    def __call__(self) -> None:
        for run in self.runs:
            record = run.record()
            epochs = _epochs(record)
            if epochs > self.seen[run.folder]:
                self.seen[run.folder] = epochs
                name = f"{run.config.method}, seed {run.config.seed}"
                self.console.print(f"{name}: {_figures(record)}", highlight=False, markup=False, soft_wrap=True)


def _epochs(record: RunRecord | None) -> int:
    return 0 if record is None else record.last_epoch


def _done(run: PlannedRun, record: RunRecord | None) -> float:
    if record is None or not record.epochs:
        return 0.0
    if record.finished:
        return 1.0
    if run.config.budget is not None:
        return min(1.0, float(record.epochs[-1]["seconds"]) / run.config.budget)
    return min(1.0, record.last_epoch / max(1, run.config.epochs))


def _share_done(runs: Sequence[PlannedRun]) -> float:
    return sum(_done(run, run.record()) for run in runs) / max(1, len(runs))


def _figures(record: RunRecord | None) -> str:
    if record is None or not record.epochs:
        return "waiting"
    last: dict[str, Any] = dict(record.epochs[-1])
    accuracy = next((e["test_accuracy"] for e in reversed(record.epochs) if e.get("test_accuracy") is not None), None)
    parts = [
        f"epoch {last['epoch']}",
        f"train loss {last['train_loss']:.3f}" if last.get("train_loss") is not None else "",
    ]
    parts.append(f"test {100 * accuracy:.2f} %" if accuracy is not None else "")
    return ", ".join(part for part in parts if part)
