"""How does the map look as one picture? Ranks over all regimes, and a panel of accuracy against time for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esam.analysis.picture import INK, write_picture

from .page import Mark, marks_of
from .standings import Map, Overall, Standing, front, overall, regime_title, shared, standard_error

COLUMNS = 4
DEPTH = 5.0
"""Points of accuracy under the base that a panel still shows."""
QUIET = "#9aa3ad"


def draw_map(path: str | Path, found: Map) -> list[Path]:
    """Draw the map and return the files; a path without an ending gives .svg and .png."""
    rows, marks = overall(found), marks_of(found)
    names, regimes = shared(found)
    bright = {"base", "sam", "esam", *(one.entrant for one in rows[:3] if not one.control)}
    lines = math.ceil(len(regimes) / COLUMNS)

    def draw(figure: Any) -> None:
        grid = figure.add_gridspec(lines, COLUMNS + 2)
        _draw_ranks(figure.add_subplot(grid[:, :2]), rows, marks, bright)
        for number, regime in enumerate(regimes):
            axes = figure.add_subplot(grid[number // COLUMNS, 2 + number % COLUMNS])
            shown = [one for one in found[regime] if one.entrant in names]
            _draw_regime(axes, regime_title(regime), shown, marks, bright)
            if number // COLUMNS == lines - 1 or number + COLUMNS >= len(regimes):
                axes.set_xlabel("time / base")
            if number % COLUMNS == 0:
                axes.set_ylabel("test accuracy, %")
        if len(regimes) % COLUMNS:
            _explain(figure.add_subplot(grid[lines - 1, 2 + len(regimes) % COLUMNS :]), found, names, regimes)

    return write_picture(path, draw, width=12.0, height=max(4.0, 2.1 * lines, 0.6 + 0.27 * len(rows)))


def _draw_ranks(axes: Any, rows: Sequence[Overall], marks: Mapping[str, Mark], bright: set[str]) -> None:
    places = range(len(rows), 0, -1)
    for place, one in zip(places, rows, strict=True):
        colour = marks[one.entrant].colour
        axes.plot(one.interval, (place, place), color=colour, linewidth=1.4)
        _dot(axes, one.rank.mean, place, colour, control=one.control, size=7)
        axes.annotate(
            f"{one.time:.2f}×",
            (1.0, place),
            xycoords=axes.get_yaxis_transform(),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
    axes.set_yticks(list(places), [one.title for one in rows])
    for label, one in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if one.entrant in bright else "normal")
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    axes.set_ylim(0.3, len(rows) + 0.7)
    axes.set(xlabel="mean rank over the regimes (1 is best), 95 % interval")
    axes.set_title("Rank, and time / base", loc="left")


def _explain(axes: Any, found: Map, names: Sequence[str], regimes: Sequence[str]) -> None:
    """Say how to read the panels, in the room that they leave."""
    seeds = sorted({one.last.n for regime in regimes for one in found[regime] if one.entrant in names})
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    words = (
        "dots: methods; squares: controls\n"
        "large: the names in bold, with one standard error\n"
        "line: nothing as cheap is as accurate\n"
        f"cut off: more than {DEPTH:g} points under the base\n"
        f"means of {count} seeds, last epoch; processor time"
    )
    axes.set_axis_off()
    axes.text(0.1, 0.9, words, va="top", fontsize=8, color=INK, linespacing=1.6, transform=axes.transAxes)


def _draw_regime(axes: Any, title: str, rows: Sequence[Standing], marks: Mapping[str, Mark], bright: set[str]) -> None:
    best = front({one.entrant: (one.time.mean, one.last.mean) for one in rows})
    named = {one.entrant: one for one in rows}
    line = [(named[name].time.mean, named[name].last.mean) for name in best]
    axes.step([x for x, _ in line], [y for _, y in line], where="post", color=QUIET, linewidth=1.0, zorder=1)
    for one in rows:
        large, colour = one.entrant in bright, marks[one.entrant].colour
        if large:
            axes.errorbar(
                one.time.mean, one.last.mean, standard_error(one.last) or 0.0, color=colour, elinewidth=1.1, zorder=2
            )
        _dot(axes, one.time.mean, one.last.mean, colour, control=one.control, size=6 if large else 4)
    axes.set_title(title, loc="left", fontsize=9)
    axes.grid(True)
    axes.tick_params(labelsize=7)
    axes.margins(0.08)
    lowest = named["base"].last.mean - DEPTH
    if axes.get_ylim()[0] < lowest:
        axes.set_ylim(bottom=lowest)


def _dot(axes: Any, x: float, y: float, colour: str, *, control: bool, size: float) -> None:
    edge = {"markerfacecolor": "white", "markeredgewidth": 1.4} if control else {"markeredgecolor": "white"}
    axes.plot(x, y, "s" if control else "o", color=colour, markersize=size, zorder=3, **edge)
