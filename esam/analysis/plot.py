"""What is drawn? Pictures for a paper: vector or PNG by the file's ending, a method in its own colour everywhere.

Every function takes a path and numbers and returns the paths written; a path without an ending gives .svg and .png.
Needs matplotlib, the extra ``analysis``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from esam.optim import METHODS
from esam.styles import styles

from .landscape import Landscape
from .picture import write_picture

Numbers = Sequence[float]

MAP = "viridis"
STEEP = 20
"""Losses whose highest is more than this many times their lowest are drawn on a logarithmic scale."""
LEVELS = 25
"""Contours of a plane."""


class Curve(NamedTuple):
    """Points of a line, with the spread around each if there is one."""

    x: Numbers
    y: Numbers
    spread: Numbers | None = None


def curves(
    path: str | Path, drawn: Mapping[str, Curve], *, x_label: str, y_label: str, title: str = "", log_y: bool = False
) -> list[Path]:
    """Draw lines against a common axis."""
    colour_of = _colours(drawn)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for name, curve in drawn.items():
            axes.plot(curve.x, curve.y, color=colour_of[name], label=name)
            if curve.spread is not None:
                low, high = ([y + sign * s for y, s in zip(curve.y, curve.spread, strict=True)] for sign in (-1, 1))
                axes.fill_between(curve.x, low, high, color=colour_of[name], alpha=0.15, linewidth=0)
        if log_y:
            axes.set_yscale("log")
        axes.set(xlabel=x_label, ylabel=y_label, title=title)
        axes.grid(True)
        if len(drawn) > 1:
            axes.legend()

    return write_picture(path, draw, width=5.2, height=3.4)


def lines(path: str | Path, landscapes: Mapping[str, Landscape], *, title: str = "") -> list[Path]:
    """Draw landscapes on a line: the mean over groups, with the groups' standard deviation around it."""
    drawn = {}
    for name, found in landscapes.items():
        if len(found.axes) != 1:
            raise ValueError(f"the landscape of {name!r} is a plane: draw it with contours")
        spread = found.losses.std(0).tolist() if len(found.losses) > 1 else None
        drawn[name] = Curve(found.axes[0], found.mean.tolist(), spread)
    return curves(path, drawn, x_label="distance along the direction", y_label="loss", title=title)


def contours(path: str | Path, landscapes: Mapping[str, Landscape]) -> list[Path]:
    """Draw landscapes on a plane side by side, with the same levels in all: closer lines mean a sharper minimum.

    The cross marks theta; losses that are not finite are left blank.
    """
    for name, found in landscapes.items():
        if len(found.axes) != 2:
            raise ValueError(f"the landscape of {name!r} is a line: draw it with lines")
    colour_of = _colours(landscapes)
    fields = {name: torch.where(one.mean.isfinite(), one.mean, math.nan) for name, one in landscapes.items()}
    finite = torch.cat([field[field.isfinite()] for field in fields.values()])
    if not len(finite):
        raise ValueError("there is nothing to draw: no loss is finite; choose a smaller reach")
    low, high = float(finite.min()), float(finite.max())
    high = high if high > low else low + max(abs(low), 1.0) * 1e-3  # a flat plane can be drawn
    steep = low > 0 and high / low > STEEP
    shares = [i / (LEVELS - 1) for i in range(LEVELS)]
    levels = [low * (high / low) ** share if steep else low + (high - low) * share for share in shares]

    def draw(figure: Any) -> None:
        from matplotlib.colors import LogNorm, Normalize

        figure.get_layout_engine().set(wspace=0.06)
        norm = (LogNorm if steep else Normalize)(low, high)
        panels = figure.subplots(1, len(fields), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (name, field) in zip(panels, fields.items(), strict=True):
            (xs, ys), losses = landscapes[name].axes, field.T.numpy()
            shades = axes.contourf(xs, ys, losses, cmap=MAP, levels=levels, norm=norm)
            axes.contour(xs, ys, losses, levels=levels[::2], norm=norm, colors="white", linewidths=0.5)
            axes.plot(0, 0, "+", color="white", markersize=8, markeredgewidth=1.4)
            alike = math.isclose(max(xs) - min(xs), max(ys) - min(ys))
            axes.set(xlabel="first direction", aspect="equal" if alike else "auto")
            axes.set_title(name, color=colour_of[name], fontweight="bold")
            axes.spines[:].set_visible(False)
        panels[0].set_ylabel("second direction")
        bar = figure.colorbar(shades, ax=list(panels), shrink=0.9, pad=0.02, ticks=levels[::4])
        bar.ax.set_yticklabels([f"{level:.3g}" for level in levels[::4]])
        bar.ax.minorticks_off()
        bar.set_label("loss (logarithmic)" if steep else "loss")
        bar.outline.set_visible(False)

    return write_picture(path, draw, width=0.9 + 2.9 * len(fields), height=3.1)


def _colours(names: Iterable[str]) -> dict[str, str]:
    titles = {row.named("SGD"): method for method, row in METHODS.items()}
    return {name: style.colour for name, style in styles({name: titles.get(name, name) for name in names}).items()}
