"""What does a person see while the runs go on, and at the end?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn

from esam.report import answer_text, summarise
from esam.report.measured import duration
from esam.train.config import Config
from esam.train.record import RunRecord

from .plan import PlannedRun
from .pool import Pool


def run_and_show(pool: Pool, runs: Sequence[PlannedRun], console: Console) -> None:
    """Do the runs under a live table; in plain lines where there is no terminal."""
    view = _View(runs)
    if not console.is_terminal:
        pool.run(runs, lambda: view.print_news(console))
        return
    with Live(console=console, refresh_per_second=4, get_renderable=view.render):
        pool.run(runs, view.read)


def show_results(runs: Sequence[PlannedRun], console: Console) -> None:
    """Print who won, the table of the finished runs and what to change, for each condition."""
    records = [record for run in runs if (record := run.record()) is not None]
    for condition, methods in summarise(records).items():
        console.print(f"{answer_text(methods, condition, console.width)}\n", highlight=False, markup=False, emoji=False)


class _View:
    """The runs' records as they grow, each read again only when its file has changed."""

    def __init__(self, runs: Sequence[PlannedRun]) -> None:
        self.runs, self.started = runs, time.monotonic()
        self._records: dict[PlannedRun, RunRecord | None] = dict.fromkeys(runs)
        self._changed: dict[PlannedRun, tuple[int, int] | None] = dict.fromkeys(runs)
        self.read()
        self._before = self._share_done()
        self._shown = {run: _epochs(self._records[run]) for run in runs}

    def read(self) -> None:
        """Read the records that have changed."""
        for run in self.runs:
            try:
                status = (run.folder / "record.jsonl").stat()
            except OSError:
                continue
            if (changed := (status.st_mtime_ns, status.st_size)) != self._changed[run]:
                self._changed[run], self._records[run] = changed, run.record()

    def print_news(self, console: Console) -> None:
        """Print a line for each epoch since the last call."""
        self.read()
        for run, record in self._records.items():
            if _epochs(record) > self._shown[run]:
                self._shown[run] = _epochs(record)
                line = f"{run.name}: {_figures(run, record)}"
                console.print(line, highlight=False, markup=False, soft_wrap=True)

    def render(self) -> RenderableType:
        """Return a bar for each run, its last figures, and the time left for all of them."""
        bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[last]}"),
        )
        for run, record in self._records.items():
            completed = round(100 * _done(run, record))
            bars.add_task(run.name, total=100, completed=completed, last=_figures(run, record))
        return Group(bars, self._time_left())

    def _time_left(self) -> str:
        done, spent = self._share_done(), time.monotonic() - self.started
        if done >= 1:
            return f"done in {duration(spent)}"
        if done <= self._before:
            return "time left: not known yet"
        return f"time left: about {duration(spent * (1 - done) / (done - self._before))}"

    def _share_done(self) -> float:
        """Return how much of the work is done; a run of more epochs counts for more."""
        work = {run: max(1, run.config.epochs) for run in self.runs}
        done = sum(work[run] * _done(run, record) for run, record in self._records.items())
        return done / max(1, sum(work.values()))


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


def _figures(run: PlannedRun, record: RunRecord | None) -> str:
    if record is None or not record.epochs:
        return "waiting"
    if record.diverged:
        return f"diverged in epoch {record.last_epoch}"
    latest: dict[str, Any] = {}
    for line in record.epochs:  # not every epoch is evaluated
        latest |= {name: value for name, value in line.items() if value is not None}
    return epoch_words(latest, run.config)


def epoch_words(metrics: Mapping[str, Any], config: Config) -> str:
    """Say how an epoch went: "epoch 3, train loss 0.213, test 91.25 %"."""
    where = "held-out" if config.validation else "test"
    words = [f"epoch {metrics['epoch']}"]
    if metrics.get("train_loss") is not None:
        words.append(f"train loss {metrics['train_loss']:.3f}")
    if metrics.get("test_accuracy") is not None:
        words.append(f"{where} {100 * metrics['test_accuracy']:.2f} %")
    elif metrics.get("test_loss") is not None:
        words.append(f"{where} loss {metrics['test_loss']:.4g}")
    if metrics.get("test_metric") is not None:
        words.append(f"metric {metrics['test_metric']:.4g}")
    return ", ".join(words)
