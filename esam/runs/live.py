"""What does a person see while runs go on? Bars with the time left on a terminal, else a line for each epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn

from esam.report.measured import duration
from esam.train.build import title
from esam.train.config import Config, describe_method, describe_run
from esam.train.record import RECORD_NAME

from .plan import PlannedRun
from .pool import Processes, run_all
from .ray import RayCluster

SPEED = 3600.0
"""Seconds over which the speed is averaged that the time left follows from."""


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


def _bars(console: Console, *names: ProgressColumn) -> Progress:
    columns = (TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn(), TextColumn("left, {task.fields[last]}"))
    return Progress(
        *names, BarColumn(10), *columns, console=console, disable=not console.is_terminal, speed_estimate_period=SPEED
    )


class RunView:
    """One run in this process: what takes effect, then a bar; without a terminal, a line for each epoch."""

    def __init__(self, config: Config, console: Console) -> None:
        self._config, self._console, self._bars = config, console, _bars(console)

    def __enter__(self) -> RunView:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def batch(self, epoch: int, number: int, batches: int) -> None:
        """Move the bar; a budget's moves with the clock, once an epoch."""
        config = self._config
        share = (epoch - 1 + number / batches) / config.epochs if config.budget is None else 0.0
        if not self._bars.tasks:
            print_line(self._console, f"{title(config)}: {describe_method(config)}; {describe_run(config)}")
            self._bars.add_task("", total=1.0, completed=share, last="epoch 0")  # type: ignore[arg-type]
        elif config.budget is None:
            self._bars.update(self._bars.task_ids[0], completed=share)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Show the figures of an epoch."""
        words = epoch_words(metrics, self._config)
        self._bars.update(self._bars.task_ids[0], completed=share_done(metrics, self._config), last=words)
        if not self._console.is_terminal:
            left = self._bars.tasks[0].time_remaining
            print_line(self._console, words + (f", about {duration(left)} left" if left else ""))


def run_and_show(runs: Sequence[PlannedRun], executor: Processes | RayCluster, console: Console) -> None:
    """Do the runs in other processes, with a bar for each and one for all; without a terminal, in plain lines."""
    bars = _bars(console, TextColumn("{task.description}"))
    tasks: dict[PlannedRun, TaskID] = {}
    for run in runs:
        share, words = _news(run)
        tasks[run] = bars.add_task(run.name, total=1.0, completed=share, last=words)  # type: ignore[arg-type]

    def done() -> float:
        return sum(max(1, run.config.epochs) * bars.tasks[task].completed for run, task in tasks.items())

    work = sum(max(1, run.config.epochs) for run in tasks)
    total = bars.add_task("all", total=work, completed=done(), last=f"{len(tasks)} runs")  # type: ignore[arg-type]
    changed: dict[PlannedRun, int] = {}

    def watch() -> None:
        for run, task in tasks.items():
            path = run.folder / RECORD_NAME
            if not path.exists() or path.stat().st_mtime_ns == changed.get(run):
                continue
            changed[run], (share, words) = path.stat().st_mtime_ns, _news(run)
            if words != bars.tasks[task].fields["last"] and not console.is_terminal:
                print_line(console, f"{run.name}: {words}")
            bars.update(task, completed=share, last=words)
        bars.update(total, completed=done())

    with bars:
        run_all(runs, executor, watch)


def _news(run: PlannedRun) -> tuple[float, str]:
    """Return how much of a run is done, and its last figures."""
    record = run.record()
    if record is None or not record.epochs:
        return 0.0, "waiting"
    if record.diverged:
        return 1.0, f"diverged in epoch {record.last_epoch}"
    latest: dict[str, Any] = {}
    for line in record.epochs:  # not every epoch is evaluated
        latest |= {name: value for name, value in line.items() if value is not None}
    return 1.0 if record.finished else share_done(latest, run.config), epoch_words(latest, run.config)
