"""What does a person see while the runs go on, and at the end?"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn

from esam.report import summarise
from esam.report.advice import advice
from esam.report.results import results_sheet
from esam.report.sheets import as_text
from esam.report.words import duration, sentences
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
    """Print the table of the finished runs, one for each condition, and a sentence about each method."""
    records = [record for run in runs if (record := run.record()) is not None]
    for condition, methods in summarise(records).items():
        table = as_text(results_sheet(methods, condition), console.width)
        told = "\n".join([sentences(methods), *(f"- {line}" for line in advice(methods))])
        console.print(f"{table}\n\n{told}\n", highlight=False, markup=False, emoji=False)


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
            bars.add_task(_name(run), total=100, completed=round(100 * _done(run, record)), last=_figures(record))
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
                self.console.print(f"{_name(run)}: {_figures(record)}", highlight=False, markup=False, soft_wrap=True)


def _name(run: PlannedRun) -> str:
    return f"{run.config.method}, seed {run.config.seed}"


def _epochs(record: RunRecord | None) -> int:
    return 0 if record is None else record.last_epoch


def _done(run: PlannedRun, record: RunRecord | None) -> float:
    if record is None or not record.epochs:
        return 0.0
    if record.finished or record.diverged:
        return 1.0
    if run.config.budget is not None:
        return min(1.0, float(record.epochs[-1]["seconds"]) / run.config.budget)
    return min(1.0, record.last_epoch / max(1, run.config.epochs))


def _share_done(runs: Sequence[PlannedRun]) -> float:
    return sum(_done(run, run.record()) for run in runs) / max(1, len(runs))


def _figures(record: RunRecord | None) -> str:
    if record is None or not record.epochs:
        return "waiting"
    last = record.epochs[-1]
    if record.diverged:
        return f"diverged in epoch {last['epoch']}"
    accuracy = next((e["test_accuracy"] for e in reversed(record.epochs) if e.get("test_accuracy") is not None), None)
    loss = "" if last.get("train_loss") is None else f", train loss {last['train_loss']:.3f}"
    return f"epoch {last['epoch']}{loss}" + ("" if accuracy is None else f", test {100 * accuracy:.2f} %")
