"""What is drawn? Pictures for a paper: vector or PNG by the file's ending, a method in its own colour everywhere.

Every function takes a path and numbers and returns the paths written; a path without an ending gives .svg and .png.
Needs matplotlib, the extra ``analysis``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from esam.optim import METHODS

from .landscape import Landscape
from .picture import GRID, INK, write_picture

Numbers = Sequence[float]
Colours = Mapping[str, str]

MAP = "viridis"
STEEP = 20
"""Losses whose highest is more than this many times their lowest are drawn on a logarithmic scale."""
LEVELS = 25
"""Contours of a plane."""


class Bar(NamedTuple):
    """A bar's height, the spread around it if there is one, and words below its name."""

    value: float
    spread: float | None = None
    words: str = ""


class Dot(NamedTuple):
    """A dot, the words beside it, and how far y spreads if that is known."""

    x: float
    y: float
    words: str = ""
    spread: float | None = None


class Curve(NamedTuple):
    """Points of a line, with the spread around each if there is one; ``dash`` is a matplotlib line style."""

    x: Numbers
    y: Numbers
    spread: Numbers | None = None
    dash: str = "-"


def curves(
    path: str | Path,
    drawn: Mapping[str, Curve],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    colours: Colours | None = None,
    log_y: bool = False,
) -> list[Path]:
    """Draw lines against a common axis."""
    own = _colours(drawn, colours)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        _draw_curves(axes, drawn, own)
        if log_y:
            axes.set_yscale("log")
        _finish(axes, x_label, y_label, title, legend=len(drawn) > 1)

    return write_picture(path, draw, width=5.2, height=3.4)


def _draw_curves(axes: Any, drawn: Mapping[str, Curve], colours: Colours, **style: Any) -> None:
    for name, curve in drawn.items():
        axes.plot(curve.x, curve.y, curve.dash, color=colours[name], label=name, **style)
        if curve.spread is not None:
            low = [y - s for y, s in zip(curve.y, curve.spread, strict=True)]
            high = [y + s for y, s in zip(curve.y, curve.spread, strict=True)]
            axes.fill_between(curve.x, low, high, color=colours[name], alpha=0.15, linewidth=0)


def curve_panels(
    path: str | Path,
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    x_label: str,
    title: str = "",
    colours: Colours | None = None,
    log: Sequence[str] = (),
) -> list[Path]:
    """Draw several panels of lines side by side, by the label of each one's y axis, with one legend below.

    ``log``: "x" for all panels' x axes, doubling; "y1", "y2", ... for the y axis of a panel.
    """
    own = _colours(dict.fromkeys(name for drawn in panels.values() for name in drawn), colours)

    def draw(figure: Any) -> None:
        every = figure.subplots(1, len(panels))
        for number, (axes, (y_label, drawn)) in enumerate(zip(every, panels.items(), strict=True), start=1):
            _draw_curves(axes, drawn, own, marker="o", markersize=3)
            if "x" in log:
                ticks = sorted({x for curve in drawn.values() for x in curve.x})
                axes.set_xscale("log", base=2)
                axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            if f"y{number}" in log:
                axes.set_yscale("log")
            else:
                axes.axhline(0, color=INK, linewidth=0.8)
            _finish(axes, x_label, y_label, "", legend=False)
        handles = {label: line for axes in every for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.suptitle(title)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)

    return write_picture(path, draw, width=4.2 * len(panels), height=4.0)


def lines(path: str | Path, landscapes: Mapping[str, Landscape], *, title: str = "") -> list[Path]:
    """Draw landscapes on a line: the mean over groups, with the groups' standard deviation around it."""
    drawn = {}
    for name, found in landscapes.items():
        _check_axes(name, found, 1)
        spread = found.losses.std(0).tolist() if len(found.losses) > 1 else None
        drawn[name] = Curve(found.axes[0], found.mean.tolist(), spread)
    return curves(path, drawn, x_label="distance along the direction", y_label="loss", title=title)


def contours(path: str | Path, landscapes: Mapping[str, Landscape]) -> list[Path]:
    """Draw landscapes on a plane side by side, with the same levels in all: closer lines mean a sharper minimum.

    The cross marks theta.
    """
    own, fields = _colours(landscapes), _fields(landscapes)
    low, high = _span(fields.values())
    steep = low > 0 and high / low > STEEP
    shares = [i / (LEVELS - 1) for i in range(LEVELS)]
    levels = [low * (high / low) ** share if steep else low + (high - low) * share for share in shares]

    def draw(figure: Any) -> None:
        from matplotlib.colors import LogNorm, Normalize

        figure.get_layout_engine().set(wspace=0.06)
        norm = (LogNorm if steep else Normalize)(low, high)
        panels = figure.subplots(1, len(fields), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (name, field) in zip(panels, fields.items(), strict=True):
            xs, ys = landscapes[name].axes
            shades = axes.contourf(xs, ys, field.T, cmap=MAP, levels=levels, norm=norm)
            axes.contour(xs, ys, field.T, levels=levels[::2], norm=norm, colors="white", linewidths=0.5)
            axes.plot(0, 0, "+", color="white", markersize=8, markeredgewidth=1.4)
            alike = math.isclose(max(xs) - min(xs), max(ys) - min(ys))
            axes.set(xlabel="first direction", aspect="equal" if alike else "auto")
            axes.set_title(name, color=own[name], fontweight="bold")
            axes.spines[:].set_visible(False)
        panels[0].set_ylabel("second direction")
        bar = figure.colorbar(shades, ax=list(panels), shrink=0.9, pad=0.02, ticks=levels[::4])
        bar.ax.set_yticklabels([f"{level:.3g}" for level in levels[::4]])
        bar.ax.minorticks_off()
        bar.set_label("loss (logarithmic)" if steep else "loss")
        bar.outline.set_visible(False)

    return write_picture(path, draw, width=0.9 + 2.9 * len(fields), height=3.1)


def surfaces(path: str | Path, landscapes: Mapping[str, Landscape]) -> list[Path]:
    """Draw landscapes on a plane as 3-D surfaces side by side, with the same height and colour scale in all."""
    own, fields = _colours(landscapes), _fields(landscapes)
    low, high = _span(fields.values())

    def draw(figure: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        for number, (name, field) in enumerate(fields.items(), start=1):
            axes = figure.add_subplot(1, len(fields), number, projection="3d")
            xs, ys = (torch.tensor(axis) for axis in landscapes[name].axes)
            x, y = (grid.numpy() for grid in torch.meshgrid(xs, ys, indexing="ij"))
            shape = {"rcount": len(xs), "ccount": len(ys), "edgecolor": "#ffffff40", "linewidth": 0.25}
            axes.plot_surface(x, y, field, cmap=MAP, vmin=low, vmax=high, antialiased=True, **shape)
            axes.set_zlim(low, high)
            axes.view_init(elev=28, azim=-55)
            axes.set_box_aspect((1, 1, 0.75), zoom=0.82)
            axes.set_xlabel("first direction", labelpad=2)
            axes.set_ylabel("second direction", labelpad=2)
            axes.zaxis.set_rotate_label(False)
            axes.set_zlabel("loss", labelpad=1, rotation=90)
            axes.tick_params(labelsize=7, pad=0)
            for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
                axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
                axis.set_pane_color((1, 1, 1, 0))
                axis._axinfo["grid"].update(color=GRID, linewidth=0.5)
            axes.set_title(name, color=own[name], fontweight="bold", y=0.98)

    return write_picture(path, draw, width=3.7 * len(fields) + 0.2, height=3.6)


def bars(
    path: str | Path,
    panels: Mapping[str, Mapping[str, Bar]],
    *,
    title: str = "",
    colours: Colours | None = None,
    formats: Mapping[str, str] | None = None,
    y_label: str | None = None,
    columns: int = 3,
) -> list[Path]:
    """Draw one panel of bars for each label, such as "accuracy, %" and "images / s", each with its own axis.

    A panel whose values lie close together does not start at zero, and says so. ``formats`` has the number format of a
    panel, such as ".2f". With a common ``y_label`` the panels' own labels stand above them; at most ``columns`` of them
    stand in a row.
    """
    own = _colours((name for panel in panels.values() for name in panel), colours)
    columns = min(columns, len(panels)) if len(panels) != 4 else 2
    rows = math.ceil(len(panels) / columns)

    def draw(figure: Any) -> None:
        every = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes in every[len(panels) :]:
            axes.remove()
        for axes, (label, panel) in zip(every, panels.items(), strict=False):
            values = [bar.value for bar in panel.values()]
            spreads = [bar.spread or 0.0 for bar in panel.values()]
            places = range(len(panel))
            axes.bar(places, values, width=0.66, color=[own[name] for name in panel])
            if any(spreads):
                axes.errorbar(places, values, spreads, fmt="none", ecolor=INK, elinewidth=1.1, capsize=3)
            number = (formats or {}).get(label, ".4g")
            for place, value, spread in zip(places, values, spreads, strict=True):
                up = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "va": "bottom"}
                axes.annotate(format(value, number), (place, value + spread), fontsize=8, color=INK, **up)
            start = _start(values, spreads)
            axes.set_ylim(start, start + 1.14 * (max(v + s for v, s in zip(values, spreads, strict=True)) - start))
            names = [f"{name}\n{bar.words}" if bar.words else name for name, bar in panel.items()]
            axes.set_xticks(list(places), names, fontsize=8)
            cut = " (axis cut)" if start else ""
            _finish(axes, "", (y_label or label) + cut, label if y_label else "", legend=False)
            axes.grid(False, axis="x")
            axes.tick_params(axis="x", length=0)
        if title:
            figure.suptitle(title, fontsize=10)

    return write_picture(path, draw, width=0.4 + 3.0 * columns, height=0.2 + 2.8 * rows)


def dots(
    path: str | Path,
    connected: Mapping[str, Sequence[Dot]],
    isolated: Mapping[str, Dot],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    colours: Colours | None = None,
) -> list[Path]:
    """Draw studies of a parameter as connected dots, and single results as large ones, their words beside them."""
    own = _colours([*isolated, *connected], colours)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for name, row in connected.items():
            axes.plot([d.x for d in row], [d.y for d in row], "o-", color=own[name], markersize=4.5, lw=1.2, label=name)
            for number, dot in enumerate(row):  # above and below in turn: neighbours may lie close
                up = {"xytext": (0, 5), "va": "bottom"} if number % 2 else {"xytext": (0, -5), "va": "top"}
                where = {**up, "ha": "center", "textcoords": "offset points", "fontsize": 7}
                axes.annotate(dot.words, (dot.x, dot.y), color=own[name], **where)
        for name, dot in isolated.items():
            axes.plot(dot.x, dot.y, "o", color=own[name], markersize=10, markeredgecolor="white", zorder=3)
            where = {"xytext": (0, 14), "textcoords": "offset points", "fontweight": "bold", "ha": "center"}
            axes.annotate(dot.words or name, (dot.x, dot.y), color=own[name], **where)
        for name, dot in [*isolated.items(), *((name, dot) for name, row in connected.items() for dot in row)]:
            if dot.spread:
                axes.errorbar(dot.x, dot.y, dot.spread, fmt="none", ecolor=own[name], elinewidth=0.8, capsize=2)
        axes.margins(x=0.12, y=0.12)
        _finish(axes, x_label, y_label, title, legend=bool(connected))

    return write_picture(path, draw, width=5.2, height=3.6)


def _fields(landscapes: Mapping[str, Landscape]) -> dict[str, Any]:
    """Return the mean losses on each plane as an array; what is not finite is left blank."""
    fields = {}
    for name, found in landscapes.items():
        _check_axes(name, found, 2)
        fields[name] = torch.where(found.mean.isfinite(), found.mean, math.nan).numpy()
    return fields


def _span(fields: Iterable[Any]) -> tuple[float, float]:
    """Return the lowest and the highest loss of all; never the same number, so that a flat plane can be drawn."""
    finite = [float(value) for field in fields for value in field.ravel() if math.isfinite(value)]
    if not finite:
        raise ValueError("there is nothing to draw: no loss is finite; choose a smaller reach")
    low, high = min(finite), max(finite)
    return low, high if high > low else low + max(abs(low), 1.0) * 1e-3


def _check_axes(name: str, found: Landscape, count: int) -> None:
    if len(found.axes) != count:
        kind = {1: "a line: draw it with lines", 2: "a plane: draw it with contours or surfaces"}[len(found.axes)]
        raise ValueError(f"the landscape of {name!r} is {kind}")


def _start(values: Numbers, spreads: Numbers) -> float:
    """Return where the bars' axis starts: 0, or near the lowest where all are within a tenth of each other."""
    low = min(v - s for v, s in zip(values, spreads, strict=True))
    high = max(v + s for v, s in zip(values, spreads, strict=True))
    if low <= 0 or low < 0.9 * high:
        return min(0.0, low)
    return max(0.0, low - (high - low))


def _colours(names: Iterable[str], given: Colours | None = None) -> dict[str, str]:
    names = list(names)
    own = {row.named("SGD"): row.colour for row in METHODS.values() if row.colour}
    spare = itertools.cycle([colour for title, colour in own.items() if title not in names] or own.values())
    return {**{name: own.get(name) or next(spare) for name in names}, **(given or {})}


def _finish(axes: Any, x_label: str, y_label: str, title: str, *, legend: bool) -> None:
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.grid(True)
    if legend:
        axes.legend()
