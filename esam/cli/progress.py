"""What does a person see while one run trains: a bar with the time left, plain lines, or nothing?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from esam.report.measured import duration
from esam.train.config import Config, describe_method, describe_run

BAR = 10
"""Characters of the bar: with both times and the figures, a line has 80."""


@contextmanager
def shown(config: Config, name: str, console: Console, *, quiet: bool) -> Iterator[Lines]:
    """Give the view for this console: a bar on a terminal, plain lines in a pipe or a file, nothing if quiet."""
    if console.is_terminal and not quiet:
        with Bar(config, name, console) as bar:
            yield bar
    else:
        yield Lines(config, name, Console(quiet=True) if quiet else console)


class Lines:
    """A line for each epoch, with the time that is left; before the first what takes effect."""

    def __init__(self, config: Config, name: str, console: Console) -> None:
        self._config, self._name, self._console = config, name, console
        self._started: float | None = None
        self._done = 0

    def batch(self, epoch: int, number: int, batches: int) -> None:
        """Print before the first batch what will be done."""
        if self._started is None:
            self._started = time.monotonic()
            self._print(f"{self._name}: {describe_method(self._config)}; {describe_run(self._config)}")

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Print the figures of an epoch."""
        self._done += 1
        left = self._left(metrics)
        self._print(f"{counted(metrics, self._config)}: {figures(metrics)}" + (f", {left} left" if left else ""))

    def _left(self, metrics: dict[str, Any]) -> str:
        if self._config.budget is not None:
            seconds = self._config.budget - metrics["seconds"]
        else:
            spent = time.monotonic() - (self._started or time.monotonic())
            seconds = spent / self._done * (self._config.epochs - metrics["epoch"])
        return f"about {duration(seconds)}" if seconds > 0 else ""

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Bar(Lines):
    """A bar over all batches, with the time left and the last figures; what takes effect is printed above it."""

    def __init__(self, config: Config, name: str, console: Console) -> None:
        super().__init__(config, name, console)
        columns = (TextColumn("{task.description}"), BarColumn(BAR), TextColumn("{task.percentage:>3.0f} %"))
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self._bars = Progress(*columns, *times, TextColumn("{task.fields[last]}"), console=console)
        self._task = self._bars.add_task("epoch 0", total=None, last="")

    def __enter__(self) -> Bar:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def batch(self, epoch: int, number: int, batches: int) -> None:
        """Move the bar; a budget's moves with the clock, once an epoch."""
        first = self._started is None
        super().batch(epoch, number, batches)
        if self._config.budget is None:
            total, done = self._config.epochs * batches, (epoch - 1) * batches + number
            if first:  # a resumed run: what was done before is no speed
                self._bars.reset(self._task, total=total, completed=done, last="")
            self._bars.update(self._task, total=total, completed=done, description=f"epoch {epoch}")

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Show the figures of an epoch beside the bar."""
        words: dict[str, Any] = {"description": counted(metrics, self._config), "last": figures(metrics, short=True)}
        if self._config.budget is not None:
            self._bars.update(self._task, total=self._config.budget, completed=metrics["seconds"], **words)
        else:
            total = self._bars.tasks[0].total or 0
            done = total * metrics["epoch"] / max(1, self._config.epochs)
            self._bars.update(self._task, completed=done, **words)


def counted(metrics: dict[str, Any], config: Config) -> str:
    """Say how far a run has come: "epoch 3 of 30"."""
    if config.budget is not None:
        return f"epoch {metrics['epoch']}, {metrics['seconds']:.0f} of {config.budget:g} s"
    return f"epoch {metrics['epoch']} of {config.epochs}"


def figures(metrics: dict[str, Any], *, short: bool = False) -> str:
    """Say an epoch's loss, and its accuracy where it was evaluated; short beside a bar."""
    accuracy = metrics.get("test_accuracy")
    if short:
        return f"loss {metrics['train_loss']:.3g}" + (f", test {100 * accuracy:.1f} %" if accuracy is not None else "")
    tail = f", test accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
    return f"train loss {metrics['train_loss']:.4f}{tail}"
