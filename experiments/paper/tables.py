"""What do the paper's tables share? Rows of accuracy and speed beside the paper's, and one picture of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from esam.analysis.picture import INK, write_picture
from esam.report.sheets import Sheet

from . import rules
from .hyperparameters import LABELS, Column, described
from .results import Results

COLOURS = {"base": "#66707d", "sam": "#1f6fb4", "esam-swp": "#8a5cc2", "esam-sds": "#0d8f58", "esam": "#c4273a"}
ABSENT = "–"


@dataclass(frozen=True)
class Printed:
    """A row as the paper prints it: accuracy in %, images/s, speed in % of SAM's, and the accuracy's deviation."""

    accuracy: float
    images: float
    speed: float | None = None
    deviation: float | None = None


PaperTable = Mapping[Column, Mapping[str, Printed]]
Tables = Callable[[Results], list[Sheet]]
Draw = Callable[[Results, Path], list[Path]]


def printed(methods: Sequence[str], *rows: tuple[float | None, ...]) -> dict[str, Printed]:
    """Return the paper's rows of one column by method."""
    return {method: Printed(*row) for method, row in zip(methods, rows, strict=True)}  # type: ignore[arg-type]


def accuracy_table(title: str, results: Results, paper: PaperTable) -> Sheet:
    """Return each method's accuracy, its lead over SGD and its speed, ours beside the paper's."""
    head = ("Task, method", "Accuracy, %", "over SGD", "paper", "of SAM's speed", "counted", "paper", "n")
    return Sheet(title, head, tuple(row for column in paper for row in _rows(results, column, paper[column])))


def _rows(results: Results, column: Column, paper: Mapping[str, Printed]) -> list[tuple[str, ...]]:
    from esam.optim import METHODS

    rows: list[tuple[str, ...]] = []
    times, base = results.speeds(column), results.accuracy(column, "base")
    for method, theirs in paper.items():
        own = results.accuracy(column, method)
        if not own:
            continue
        gap = rules.paired(own, base)
        settings = dict(results.scale.config(column, method, 0).settings)
        counted = METHODS["sam"].units() / METHODS[method].units(settings)
        rows.append(
            (
                f"{described(results.scale, column)}: {LABELS[method]}",
                _mean(list(own.values())),
                ABSENT if method == "base" or gap is None else gap.words(),
                ABSENT if method == "base" else f"{theirs.accuracy - paper['base'].accuracy:+.2f}",
                f"{100 / fmean(times[method]):.0f} %" if method in times else ABSENT,
                f"{100 * counted:.0f} %",
                f"{100 * theirs.images / paper['sam'].images:.0f} %",
                str(len(own)),
            )
        )
    return rows


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def draw_table(path: Path, results: Results, paper: PaperTable, title: str) -> list[Path]:
    """Draw points over SGD and speed in % of SAM's, ours beside the paper's, a group for each column."""
    columns = results.columns(paper, "base", "sam", "esam")
    if not columns:
        return []

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        places, place = [], 0.0
        for column in columns:
            base, times = results.accuracy(column, "base"), results.speeds(column)
            for method, theirs in paper[column].items():
                own = results.accuracy(column, method)
                if method == "base" or not own:
                    continue
                gap = rules.paired(own, base)
                colour = COLOURS[method]
                if gap is not None:
                    left.errorbar(gap.mean, place, xerr=_finite(gap.half), color=colour, marker="o")
                left.plot(theirs.accuracy - paper[column]["base"].accuracy, place, "D", color=colour, mfc="white")
                if method in times:
                    ratio = rules.speed_ratio([100 / time for time in times[method]])
                    right.errorbar(ratio.mean, place, xerr=_finite(ratio.half), color=colour, marker="o")
                right.plot(100 * theirs.images / paper[column]["sam"].images, place, "D", color=colour, mfc="white")
                places.append((place, f"{results.title(column)}: {LABELS[method]} (n = {len(own)})"))
                place -= 1
            place -= 0.6
        left.set_yticks([at for at, _ in places], [words for _, words in places], fontsize=8)
        left.axvline(0, color=INK, linewidth=0.8)
        right.axvline(100, color=INK, linewidth=0.8)
        left.set(xlabel="points of test accuracy over SGD")
        right.set(xlabel="speed of a step, % of SAM's")
        for axes in (left, right):
            axes.grid(True, axis="x")
        figure.suptitle(
            f"{title}\nfilled: here, 95 % t intervals over seeds and over processes; open: the paper", fontsize=9
        )

    rows = sum(len(paper[column]) - 1 for column in columns)
    return write_picture(path, draw, width=8.0, height=1.3 + 0.3 * rows + 0.15 * len(columns))


def table_item(name: str, paper: PaperTable, title: str) -> tuple[Tables, Draw]:
    """Return what makes the sheets of a table's item, and what draws it."""
    heading = f"{title}: mean ± deviation over seeds; leads ± 95 % t interval"
    return (
        lambda results: [accuracy_table(heading, results, paper)],
        lambda results, folder: draw_table(folder / f"{name}.png", results, paper, title),
    )


def _finite(half: float) -> float:
    return half if half < float("inf") else 0.0
