"""What do the paper's tables share? Accuracy and speed by workload and method, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esam.analysis.plot import Bar, bars
from esam.compare.plan import Comparison
from esam.optim import METHODS
from esam.report.colours import SPARE
from esam.report.sheets import Sheet

from ..engine.inputs import Inputs
from ..engine.item import Item, MethodRuns, Needs, Workload, runs_of
from ..engine.scale import ExperimentScale, PaperTask
from ..engine.values import Repeated, number
from .timing import Speed, timed

THREE = ("base", "sam", "esam")
FIVE = ("base", "sam", "esam-swp", "esam-sds", "esam")
RANDOM_TASKS = (("ResNet-18", "CIFAR-10"), ("ResNet-18", "CIFAR-100"))
"""Where ESAM on a random half, which the paper does not have, gets a row."""


@dataclass(frozen=True)
class Printed:
    """A row of a table as the paper prints it: accuracy in %, images/s, speed over SAM's and accuracy's spread in %."""

    accuracy: float | None = None
    images_per_second: float | None = None
    speed: float | None = None
    spread: float | None = None


PaperTable = Mapping[PaperTask, Mapping[str, Printed]]
"""The paper's rows by task and method."""


def printed(methods: Sequence[str], *rows: tuple[float | None, ...]) -> dict[str, Printed]:
    """Return the paper's rows on one task by their methods."""
    return {method: Printed(*row) for method, row in zip(methods, rows, strict=True)}


@dataclass(frozen=True)
class MethodFigures:
    """One row of a table: what a method reached on a workload, over its seeds; accuracies in per cent."""

    method: str
    label: str
    share: float | None
    """SWP's beta or SDS's gamma, where the paper studies it."""
    accuracy: Repeated
    """On the test images, after the last epoch."""
    best: Repeated | None
    """The best of several evaluations; None where a run was evaluated once."""
    train_accuracy: Repeated
    speed: Speed
    paper: Printed | None
    train_loss: Repeated | None = None
    """None where an earlier version made the table."""


@dataclass(frozen=True)
class WorkloadFigures:
    """The methods on one workload."""

    workload: Workload
    threads: int
    """CPU threads of the timed steps."""
    methods: tuple[MethodFigures, ...]

    def find(self, method: str) -> MethodFigures:
        """Return a method's row."""
        return next(own for own in self.methods if own.method == method)


@dataclass(frozen=True)
class TableFigures:
    """What a table shows."""

    workloads: tuple[WorkloadFigures, ...]


def table_figures(inputs: Inputs, paper: PaperTable) -> TableFigures:
    """Return the figures of every method on every workload."""
    workloads: dict[Workload, list[MethodRuns]] = {}
    for runs in inputs.needs.runs:
        workloads.setdefault(runs.workload, []).append(runs)
    found = []
    for workload, every in workloads.items():
        threads, speeds = timed(inputs, workload, every)
        theirs = paper.get((workload.paper_model, workload.paper_data), {})
        rows = [method_figures(inputs, runs, speed, theirs) for runs, speed in zip(every, speeds, strict=True)]
        found.append(WorkloadFigures(workload, threads, tuple(rows)))
    return TableFigures(tuple(found))


def method_figures(inputs: Inputs, runs: MethodRuns, speed: Speed, paper: Mapping[str, Printed]) -> MethodFigures:
    """Return a method's row from its records, with the speed that was timed."""
    once = runs.configs[0].evaluate_every >= runs.configs[0].epochs
    return MethodFigures(
        method=runs.method,
        label=runs.label,
        share=runs.share,
        accuracy=inputs.accuracy(runs),
        best=None if once else inputs.accuracy(runs, "best"),
        train_accuracy=inputs.train_accuracy(runs),
        speed=speed,
        paper=paper.get(runs.method) if runs.share is None else None,
        train_loss=inputs.train_loss(runs),
    )


def accuracy_sheet(title: str, measured: TableFigures) -> Sheet:
    """Return ours and the paper's figures side by side, one line for each method on each workload."""
    accuracy = ("Accuracy, %", "best, %", "paper, %", "Training, %", "over base", "paper")
    speed = ("Images/s", "of SAM's speed", "by count", "paper", "paper, images/s")
    lines = [
        (f"{one.workload.title}: {own.label}", *_cells(own, one.find("base")))
        for one in measured.workloads
        for own in one.methods
    ]
    return Sheet(title, ("Task, method", *accuracy, *speed, "n"), tuple(lines))


def _cells(own: MethodFigures, base: MethodFigures) -> tuple[str, ...]:
    speed, paper = own.speed, own.paper or Printed()
    gain = paper_gain = None
    if own is not base:
        gain = _minus(own.accuracy.mean, base.accuracy.mean)
        paper_gain = _minus(paper.accuracy, (base.paper or Printed()).accuracy)
    spread = "" if paper.spread is None else f" ± {paper.spread:.2f}"
    return (
        own.accuracy.words(2),
        own.best.words(2) if own.best else number(None, 2),
        number(paper.accuracy, 2) + spread,
        own.train_accuracy.words(2),
        number(gain, 2, sign="+"),
        number(paper_gain, 2, sign="+"),
        number(speed.images_per_second, 0),
        number(100 * speed.over_sam.value, 1, unit=" %"),
        number(100 * speed.counted, 1, unit=" %"),
        number(paper.speed, 1, unit=" %"),
        number(paper.images_per_second, 0),
        str(own.accuracy.n),
    )


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


KINDS: dict[str, tuple[str, str, Callable[[MethodFigures], Bar]]] = {
    "accuracy": (
        "test accuracy, %",
        ".1f",
        lambda own: Bar(own.accuracy.mean or 0.0, own.accuracy.std, _paper(own, 0)),
    ),
    "speed": ("training speed, images/s", ",.0f", lambda own: Bar(own.speed.images_per_second, None, _paper(own, 1))),
}
"""What bars show: axis label, number format, height with the paper's number below it."""


def _paper(own: MethodFigures, which: int) -> str:
    printed = own.paper or Printed()
    value = (printed.accuracy, printed.images_per_second)[which]
    return "" if value is None else f"({value:,.1f})" if which == 0 else f"({value:,.0f})"


def spread_words(measured: TableFigures) -> str:
    """Say what the whiskers are, over how many seeds."""
    counts = sorted({own.accuracy.n for one in measured.workloads for own in one.methods})
    return f"whiskers: standard deviation over n = {' to '.join(map(str, counts))} seeds"


def draw_bars(measured: TableFigures, path: Path) -> list[Path]:
    """Draw accuracy and speed of every method, a panel for each workload."""
    written = []
    for kind, (label, form, bar) in KINDS.items():
        panels = {
            one.workload.titled("\n"): {below_bar(own): bar(own) for own in one.methods} for one in measured.workloads
        }
        where, formats = path.with_name(f"{path.name}-{kind}"), dict.fromkeys(panels, form)
        title = spread_words(measured) if kind == "accuracy" else "steps timed in turn, on random images"
        note = f"{title}\nin brackets: the paper's number, on its own model and data"
        written += bars(where, panels, title=note, formats=formats, colours=bar_colours(measured), y_label=label)
    return written


def below_bar(own: MethodFigures) -> str:
    """Return a label that fits below a bar."""
    return own.label.replace("ESAM-", "ESAM-\n")


def bar_colours(measured: TableFigures) -> dict[str, str]:
    """Return the methods' colours by the labels that stand below bars."""
    return {below_bar(own): METHODS[own.method].colour or SPARE for one in measured.workloads for own in one.methods}


def table_item(
    name: str,
    number: str,
    title: str,
    *,
    heading: str,
    paper: PaperTable,
    methods: Callable[[ExperimentScale, PaperTask], Sequence[str]],
    notes: tuple[str, ...],
    tasks: Callable[[ExperimentScale], Sequence[PaperTask]] | None = None,
    comparisons: Callable[[ExperimentScale], Mapping[PaperTask, Comparison]] = lambda scale: scale.comparisons,
    draw: Callable[[TableFigures, Path], list[Path]] = draw_bars,
) -> Item[Any]:
    """Return a table of accuracy and speed on the paper's tasks, its numbers beside ours."""

    def needs(scale: ExperimentScale) -> Needs:
        own = comparisons(scale)
        known = [task for task in (tasks(scale) if tasks else paper) if task in own]
        every = [runs for task in known for runs in runs_of(task, own[task], methods(scale, task))]
        return Needs(runs=tuple(every))

    return Item(
        name=name,
        number=number,
        title=title,
        kind=TableFigures,
        needs=needs,
        analyse=lambda inputs: table_figures(inputs, paper),
        sheets=lambda measured: [accuracy_sheet(heading, measured)],
        draw=draw,
        notes=notes,
    )
