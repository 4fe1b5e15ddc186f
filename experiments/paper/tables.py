"""What do the paper's tables share? Rows of accuracy and speed beside the paper's, and one picture of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esam.analysis.picture import INK, write_picture
from esam.optim import METHODS
from esam.report.measured import ABSENT, Measured
from esam.report.sheets import Sheet

from .hyperparameters import FIVE, LABELS, THREE, Column
from .results import Results
from .rules import finite

COLOURS = {"base": "#66707d", "sam": "#1f6fb4", "esam-swp": "#8a5cc2", "esam-sds": "#0d8f58", "esam": "#c4273a"}


@dataclass(frozen=True)
class Printed:
    """A row as the paper prints it: accuracy in %, images/s, and the accuracy's deviation."""

    accuracy: float
    images: float
    deviation: float = 0.0


PaperTable = Mapping[Column, Mapping[str, Printed]]


def printed(*rows: tuple[float, ...]) -> dict[str, Printed]:
    """Return the paper's rows of one column by method: SGD, SAM, (SWP, SDS,) ESAM."""
    methods = THREE if len(rows) == len(THREE) else FIVE
    return {method: Printed(*row) for method, row in zip(methods, rows, strict=True)}


def make_tables(title: str, paper: PaperTable, results: Results) -> list[Sheet]:
    """Return each method's accuracy, its lead over the base and its speed, ours beside the paper's."""
    rows: list[tuple[str, ...]] = []
    for column, theirs in paper.items():
        for method, row in theirs.items():
            own = Measured.of(results.accuracy(column, method).values())
            if own is None:
                continue
            lead, speed = results.lead(column, method), results.speed(column, method)
            counted = METHODS["sam"].units() / METHODS[method].units(results.scale.config(column, method, 0).settings)
            rows.append(
                (
                    f"{results.title(column)}: {results.label(column, method)}",
                    own.format(decimals=2),
                    lead.words() if lead is not None and method != "base" else ABSENT,
                    f"{row.accuracy - theirs['base'].accuracy:+.2f}" if method != "base" else ABSENT,
                    f"{100 * speed.mean:.0f} %" if speed is not None else ABSENT,
                    f"{100 * counted:.0f} %",
                    f"{100 * row.images / theirs['sam'].images:.0f} %",
                    str(own.n),
                )
            )
    head = ("Task, method", "Accuracy, %", "over the base", "paper", "of SAM's speed", "counted", "paper", "n")
    return [Sheet(f"{title}: mean ± deviation over seeds; leads ± 95 % t interval", head, tuple(rows))]


def draw_table(name: str, title: str, paper: PaperTable, results: Results, folder: Path) -> list[Path]:
    """Draw points over the base and speed in % of SAM's, ours beside the paper's, a group for each column."""
    lines = [
        (number, column, method, lead)
        for number, column in enumerate(paper)
        for method in paper[column]
        if method != "base" and (lead := results.lead(column, method)) is not None
    ]
    if not lines:
        return []
    places = [-float(at) - 0.6 * number for at, (number, *_) in enumerate(lines)]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for place, (_, column, method, lead) in zip(places, lines, strict=True):
            ours = {"color": COLOURS[method], "marker": "o", "capsize": 2}
            theirs = {"color": COLOURS[method], "marker": "D", "mfc": "white", "capsize": 2, "lw": 0.8}
            row, base, sam = paper[column][method], paper[column]["base"], paper[column]["sam"]
            left.errorbar(lead.mean, place, xerr=finite(lead.half), **ours)
            # a difference's deviation, from those of both rows
            spread = (row.deviation**2 + base.deviation**2) ** 0.5
            left.errorbar(row.accuracy - base.accuracy, place - 0.25, xerr=spread, **theirs)
            if (speed := results.speed(column, method)) is not None:
                right.errorbar(100 * speed.mean, place, xerr=100 * finite(speed.half), **ours)
            right.errorbar(100 * row.images / sam.images, place - 0.25, **theirs)
        named = [f"{results.title(column)}: {LABELS[method]} (n = {lead.n})" for _, column, method, lead in lines]
        left.set_yticks(places, named, fontsize=8)
        left.set_ylim(places[-1] - 0.7, 0.6)
        over = f"points of test accuracy over {results.label(lines[0][1], 'base')}"
        for axes, level, words in ((left, 0, over), (right, 100, "speed, % of SAM's")):
            axes.axvline(level, color=INK, linewidth=0.8)
            axes.set(xlabel=words)
            axes.grid(True, axis="x")
        words = "filled: here, 95 % t intervals over n seeds and over processes; open: the paper, its nets and data"
        figure.suptitle(f"{title}\n{words}", fontsize=9)

    return write_picture(folder / f"{name}.png", draw, width=8.0, height=1.4 - 0.3 * places[-1])
