"""What do the paper's tables share? Rows of accuracy and speed beside the paper's, and one picture of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esam.analysis.picture import INK, write_picture
from esam.optim import METHODS
from esam.report.measured import ABSENT, Measured
from esam.report.sheets import Sheet

from . import rules
from .hyperparameters import FIVE, LABELS, THREE, Column
from .results import Results

COLOURS = {"base": "#66707d", "sam": "#1f6fb4", "esam-swp": "#8a5cc2", "esam-sds": "#0d8f58", "esam": "#c4273a"}


@dataclass(frozen=True)
class Printed:
    """A row as the paper prints it: accuracy in %, images/s, and the accuracy's deviation."""

    accuracy: float
    images: float
    deviation: float | None = None


PaperTable = Mapping[Column, Mapping[str, Printed]]


def printed(*rows: tuple[float, ...]) -> dict[str, Printed]:
    """Return the paper's rows of one column by method: SGD, SAM, (SWP, SDS,) ESAM."""
    methods = THREE if len(rows) == len(THREE) else FIVE
    return {method: Printed(*row) for method, row in zip(methods, rows, strict=True)}


def make_tables(title: str, paper: PaperTable, results: Results) -> list[Sheet]:
    """Return each method's accuracy, its lead over SGD and its speed, ours beside the paper's."""
    rows: list[tuple[str, ...]] = []
    for column, printed_rows in paper.items():
        base = results.accuracy(column, "base")
        for method, theirs in printed_rows.items():
            own = Measured.of(results.accuracy(column, method).values())
            if own is None:
                continue
            gap, speed = rules.paired(results.accuracy(column, method), base), results.speed(column, method)
            counted = METHODS["sam"].units() / METHODS[method].units(results.scale.config(column, method, 0).settings)
            led = method != "base"
            rows.append(
                (
                    f"{results.title(column)}: {LABELS[method]}",
                    own.format(decimals=2),
                    gap.words() if led and gap is not None else ABSENT,
                    f"{theirs.accuracy - printed_rows['base'].accuracy:+.2f}" if led else ABSENT,
                    f"{100 * speed.mean:.0f} %" if speed is not None else ABSENT,
                    f"{100 * counted:.0f} %",
                    f"{100 * theirs.images / printed_rows['sam'].images:.0f} %",
                    str(own.n),
                )
            )
    head = ("Task, method", "Accuracy, %", "over SGD", "paper", "of SAM's speed", "counted", "paper", "n")
    return [Sheet(f"{title}: mean ± deviation over seeds; leads ± 95 % t interval", head, tuple(rows))]


def draw_item(name: str, title: str, paper: PaperTable, results: Results, folder: Path) -> list[Path]:
    """Draw a table into a folder."""
    return draw_table(folder / f"{name}.png", results, paper, title)


def draw_table(path: Path, results: Results, paper: PaperTable, title: str) -> list[Path]:
    """Draw points over SGD and speed in % of SAM's, ours beside the paper's, a group for each column."""
    lines = [
        (number, column, method, gap)
        for number, column in enumerate(paper)
        for method in paper[column]
        if method != "base"
        if (gap := rules.paired(results.accuracy(column, method), results.accuracy(column, "base"))) is not None
    ]
    if not lines:
        return []
    places = [-float(at) - 0.6 * number for at, (number, *_) in enumerate(lines)]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for place, (_, column, method, gap) in zip(places, lines, strict=True):
            rows, colour, speed = paper[column], COLOURS[method], results.speed(column, method)
            left.errorbar(gap.mean, place, xerr=_finite(gap.half), color=colour, marker="o")
            left.plot(rows[method].accuracy - rows["base"].accuracy, place, "D", color=colour, mfc="white")
            if speed is not None:
                right.errorbar(100 * speed.mean, place, xerr=100 * _finite(speed.half), color=colour, marker="o")
            right.plot(100 * rows[method].images / rows["sam"].images, place, "D", color=colour, mfc="white")
        named = [f"{results.title(column)}: {LABELS[method]} (n = {gap.n})" for _, column, method, gap in lines]
        left.set_yticks(places, named, fontsize=8)
        left.set_ylim(places[-1] - 0.6, 0.6)
        for axes, level, words in ((left, 0, "points of test accuracy over SGD"), (right, 100, "speed, % of SAM's")):
            axes.axvline(level, color=INK, linewidth=0.8)
            axes.set(xlabel=words)
            axes.grid(True, axis="x")
        words = "filled: here, 95 % t intervals over seeds and over processes; open: the paper"
        figure.suptitle(f"{title}\n{words}", fontsize=9)

    return write_picture(path, draw, width=8.0, height=1.4 - 0.3 * places[-1])


def _finite(half: float) -> float:
    return half if math.isfinite(half) else 0.0
