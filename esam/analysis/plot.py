"""How is a landscape on a plane drawn? Needs matplotlib, the extra ``analysis``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from esam.optim import METHODS
from esam.styles import styles

from .landscape import Landscape
from .picture import write_picture

MAP = "viridis"
STEEP = 20
"""Losses whose highest is more than this many times their lowest are drawn on a logarithmic scale."""
LEVELS = 25
"""Contours of a plane."""


def contours(path: str | Path, landscapes: Mapping[str, Landscape], *, title: str = "") -> list[Path]:
    """Draw landscapes on a plane side by side, with the same levels in all: closer lines mean a sharper minimum.

    The cross marks theta; losses that are not finite are left blank. A method has its own colour. The path's ending
    decides the format; without one, .svg and .png are written.
    """
    for name, plane in landscapes.items():
        if len(plane.axes) != 2:
            raise ValueError(f"the landscape of {name!r} is a line: plot its mean against its axis instead")
    method_of = {row.named("SGD"): method for method, row in METHODS.items()}
    style_of = styles({name: method_of.get(name, name) for name in landscapes})
    fields = {name: torch.where(plane.mean.isfinite(), plane.mean, math.nan) for name, plane in landscapes.items()}
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
            axes.set_title(name, color=style_of[name].colour, fontweight="bold")
            axes.spines[:].set_visible(False)
        panels[0].set_ylabel("second direction")
        bar = figure.colorbar(shades, ax=list(panels), shrink=0.9, pad=0.02, ticks=levels[::4])
        bar.ax.set_yticklabels([f"{level:.3g}" for level in levels[::4]])
        bar.ax.minorticks_off()
        bar.set_label("loss (logarithmic)" if steep else "loss")
        bar.outline.set_visible(False)
        if title:
            figure.suptitle(title, fontsize=9)

    return write_picture(path, draw, width=0.9 + 2.9 * len(fields), height=3.1)
