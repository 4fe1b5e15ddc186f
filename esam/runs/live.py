"""What does a person see while runs go on, and at the end?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from esam.report.measured import duration
from esam.report.results import answer_text
from esam.report.summaries import summarise
from esam.train.config import Config, describe_method, describe_run
from esam.train.record import RECORD_NAME, RunRecord

from .plan import PlannedRun
from .pool import Pool

PERCENT, LAST = TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.fields[last]}")


def print_line(console: Console, line: str) -> None:
    """Print a line as it is, however long."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def epoch_words(metrics: Mapping[str, Any], config: Config) -> str:
    """Say how an epoch went: "epoch 3 of 30, train loss 0.213, test 91.25 %"."""
    where = "held-out" if config.validation else "test"
    words = [f"epoch {metrics['epoch']}"]
    if config.budget is None:
        words[0] += f" of {config.epochs}"
    else:
        words.append(f"{metrics['seconds']:.0f} of {config.budget:g} s")
    if metrics.get("train_loss") is not None:
        words.append(f"train loss {metrics['train_loss']:.3f}")
    if metrics.get("test_accuracy") is not None:
        words.append(f"{where} {100 * metrics['test_accuracy']:.2f} %")
    elif metrics.get("test_loss") is not None:
        words.append(f"{where} loss {metrics['test_loss']:.4g}")
    if metrics.get("test_metric") is not None:
        words.append(f"metric {metrics['test_metric']:.4g}")
    return ", ".join(words)


def share_done(metrics: Mapping[str, Any], config: Config) -> float:
    """Return how much of a run is done after an epoch."""
    if config.budget is not None:
        return min(1.0, float(metrics["seconds"]) / config.budget)
    return min(1.0, float(metrics["epoch"]) / max(1, config.epochs))


# One run, in this process --------------------------------------------------------------------------------------------


class RunView:
    """A bar with the time left on a terminal; else a line for each epoch. Before the first what takes effect."""

    def __init__(self, config: Config, name: str, console: Console) -> None:
        self._config, self._name, self._console = config, name, console
        self._started: float | None = None
        self._before = 0.0
        columns: tuple[ProgressColumn, ...] = (BarColumn(10), PERCENT, TimeRemainingColumn(), TextColumn("left,"), LAST)
        self.bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self.bars.add_task("", total=1.0, last="epoch 0")

    def batch(self, epoch: int, number: int, batches: int) -> None:
        """Move the bar; a budget's moves with the clock, once an epoch."""
        share = (epoch - 1 + number / batches) / self._config.epochs if self._config.budget is None else 0.0
        if self._started is None:
            self._started, self._before = time.monotonic(), share  # of a resumed run, what was done before is no speed
            print_line(self._console, f"{self._name}: {describe_method(self._config)}; {describe_run(self._config)}")
            self.bars.reset(self._task, completed=share)  # type: ignore[arg-type]
        if self._config.budget is None:
            self.bars.update(self._task, completed=share)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Show the figures of an epoch."""
        share, words = share_done(metrics, self._config), epoch_words(metrics, self._config)
        self.bars.update(self._task, completed=share, last=words)
        if not self._console.is_terminal:
            spent = time.monotonic() - (self._started or 0.0)
            left = spent * (1 - share) / (share - self._before) if share > self._before else 0.0
            if self._config.budget is not None:
                left = self._config.budget - metrics["seconds"]
            print_line(self._console, words + (f", about {duration(left)} left" if left > 0 else ""))


@contextmanager
def shown(config: Config, name: str, console: Console) -> Iterator[RunView]:
    """Give the view of one run."""
    view = RunView(config, name, console)
    with view.bars:
        yield view


# Many runs, in other processes ---------------------------------------------------------------------------------------


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
        self._changed: dict[PlannedRun, tuple[int, int]] = {}
        self.read()
        self._before = self._share_done()
        self._printed = {run: _epochs(self._records[run]) for run in runs}

    def read(self) -> None:
        """Read the records that have changed."""
        for run in self.runs:
            try:
                status = (run.folder / RECORD_NAME).stat()
            except OSError:
                continue
            if (changed := (status.st_mtime_ns, status.st_size)) != self._changed.get(run):
                self._changed[run], self._records[run] = changed, run.record()

    def print_news(self, console: Console) -> None:
        """Print a line for each run that has a new epoch since the last call."""
        self.read()
        for run, record in self._records.items():
            if _epochs(record) > self._printed[run]:
                self._printed[run] = _epochs(record)
                print_line(console, f"{run.name}: {_figures(run, record)}")

    def render(self) -> RenderableType:
        """Return a bar for each run, its last figures, and the time left for all of them."""
        bars = Progress(TextColumn("{task.description}"), BarColumn(bar_width=20), PERCENT, LAST)
        for run, record in self._records.items():
            bars.add_task(run.name, total=1.0, completed=_done(run, record), last=_figures(run, record))  # type: ignore[arg-type]
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
    return 1.0 if record.finished or record.diverged else share_done(record.epochs[-1], run.config)


def _figures(run: PlannedRun, record: RunRecord | None) -> str:
    if record is None or not record.epochs:
        return "waiting"
    if record.diverged:
        return f"diverged in epoch {record.last_epoch}"
    latest: dict[str, Any] = {}
    for line in record.epochs:  # not every epoch is evaluated
        latest |= {name: value for name, value in line.items() if value is not None}
    return epoch_words(latest, run.config)
