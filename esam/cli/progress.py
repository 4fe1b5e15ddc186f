"""What does a person see while one run trains: a bar with the time left, plain lines, or nothing?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from esam.report.words import duration
from esam.train.config import Config
from esam.train.effective import told_method, told_run


class View(Protocol):
    """Is told of every batch before it is taken, and of every epoch after it."""

    def batch(self, epoch: int, number: int, batches: int) -> None:
        """See that a batch is about to be taken."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """See an epoch's figures."""


@contextmanager
def shown(config: Config, name: str, console: Console, *, quiet: bool) -> Iterator[View]:
    """Give the view for this console: a bar on a terminal, plain lines in a pipe or a file."""
    if quiet:
        yield Silent()
    elif console.is_terminal:
        with Bar(config, name, console) as bar:
            yield bar
    else:
        yield Lines(config, name, console)


class Silent:
    """Shows nothing."""

    def batch(self, epoch: int, number: int, batches: int) -> None:
        """Show nothing."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Show nothing."""


class Lines:
    """A line for each epoch, with the time that is left; before the first what takes effect."""

    def __init__(self, config: Config, name: str, console: Console) -> None:
        self._config, self._name, self._console = config, name, console
        self._started: float | None = None
        self._done = 0

    def batch(self, epoch: int, number: int, batches: int) -> None:
        """Tell before the first batch what will be done."""
        if self._started is None:
            self._started = time.monotonic()
            self._print(f"{self._name}: {told_method(self._config)}; {told_run(self._config)}")

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
    """A bar over all batches, with the time left and the last figures; what takes effect stands above it."""

    def __init__(self, config: Config, name: str, console: Console) -> None:
        super().__init__(config, name, console)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
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
        words: dict[str, Any] = {"description": counted(metrics, self._config), "last": figures(metrics)}
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


def figures(metrics: dict[str, Any]) -> str:
    """Say an epoch's loss, and its accuracy where it was evaluated."""
    accuracy = metrics.get("test_accuracy")
    tail = f", test accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
    return f"train loss {metrics['train_loss']:.4f}{tail}"
