"""What does the loss look like around the trained weights? As ``esam analyze RUN --pictures FOLDER`` left it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esam.report.charts import LOG_AXIS, STEEP, Chart, Drawn

ANALYSIS_NAME = "analysis.json"
LEVELS = 14
SHADES = "Cividis"
"""Even in lightness, and the same to those who confuse red and green."""


@dataclass(frozen=True)
class Surroundings:
    """The loss around the weights of one run: on a plane, along a line, or both."""

    run: str
    """The run's identity."""
    seed: int
    plane: tuple[list[list[float]], list[list[float]]] | None
    """The two axes; and for each place on the second, the losses along the first."""
    line: tuple[list[float], list[float]] | None


def read_analyses(folder: Path) -> list[Surroundings]:
    """Read every analysis below a folder that has a landscape; a file that is none of ours is passed over."""
    found = []
    for path in sorted(folder.rglob(ANALYSIS_NAME)):
        try:
            told = json.loads(path.read_bytes())
            plane, line = (_mean(told[name]) if name in told else None for name in ("landscape", "line"))
            run, seed = str(told["run"]["id"]), int(told["run"]["seed"])
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            continue
        if plane is None and line is None:
            continue
        rows = None
        if plane is not None:
            (xs, ys), values = plane
            rows = ([xs, ys], [[values[i * len(ys) + j] for i in range(len(xs))] for j in range(len(ys))])
        found.append(Surroundings(run, seed, rows, None if line is None else (line[0][0], line[1])))
    return found


def _mean(told: Mapping[str, Any]) -> tuple[list[list[float]], list[float]]:
    """Return the axes, and the losses averaged over the groups; what is not finite is NaN."""
    groups = [[math.nan if value is None else float(value) for value in row] for row in told["groups"]]
    axes = [[float(value) for value in axis] for axis in told["axes"]]
    if not groups or any(len(row) != math.prod(map(len, axes)) for row in groups):
        raise ValueError("a loss for each point of the axes")
    return axes, [sum(column) / len(groups) for column in zip(*groups, strict=True)]


def landscape_charts(drawn: Sequence[Drawn], analyses: Sequence[Surroundings]) -> list[Chart]:
    """Give a map of the loss for each run that was looked at on a plane, and one chart of all lines."""
    owners = {str(run.run.get("id")): one for one in drawn for run in one.summary.group.runs}
    found = [(owners[one.run], one) for one in analyses if one.run in owners]
    ours = sorted(found, key=lambda pair: (drawn.index(pair[0]), pair[1].seed))
    planes = [(owner, one) for owner, one in ours if one.plane is not None]
    values = [v for _, one in planes if one.plane for row in one.plane[1] for v in row if math.isfinite(v)]
    return [
        *(_plane(owner, one, min(values), max(values)) for owner, one in planes if values),
        _lines([(owner, one) for owner, one in ours if one.line is not None]),
    ]


def _plane(owner: Drawn, one: Surroundings, low: float, high: float) -> Chart:
    assert one.plane is not None
    (xs, ys), rows = one.plane
    steep = 0 < STEEP * low < high
    scale = math.log10 if steep else float
    heights = [[scale(v) if math.isfinite(v) and (not steep or v > 0) else None for v in row] for row in rows]
    first, last = scale(low), scale(high) if high > low else scale(low) + 1
    levels = {"start": first, "end": last, "size": (last - first) / LEVELS}
    ticks = [first + (last - first) * share / 4 for share in range(5)]
    words = [f"{10**tick if steep else tick:.3g}" for tick in ticks]
    told = [[v if math.isfinite(v) else None for v in row] for row in rows]
    trace = owner.trace(
        "%{meta.name}: loss %{customdata:.4g} at (%{x:.2f}, %{y:.2f})",
        type="contour",
        x=xs,
        y=ys,
        z=heights,
        customdata=told,
        zmin=first,
        zmax=last,
        colorscale=SHADES,
        contours=levels,
        line={"width": 0.5, "color": "rgba(255, 255, 255, 0.5)"},
        colorbar={"thickness": 10, "outlinewidth": 0, "tickvals": ticks, "ticktext": words},
    )
    here = owner.trace("the trained weights", mode="markers", x=[0], y=[0], marker={"symbol": "cross-thin", "size": 12})
    here["marker"]["line"] = {"width": 2, "color": "#ffffff"}
    name, middle = f"{owner.summary.name}, seed {one.seed}", rows[len(ys) // 2][len(xs) // 2]
    layout = {
        "xaxis": {"title": {"text": "first random direction"}, "showgrid": False},
        "yaxis": {"title": {"text": "second random direction"}, "showgrid": False},
        "hovermode": "closest",
    }
    reading = f"Closer lines are a sharper minimum{'; colours are logarithmic' if steep else ''}; the same in all maps"
    label = f"Loss around the weights of {name}: {middle:.4g} in the middle; all maps go from {low:.4g} to {high:.4g}."
    return Chart(f"Loss around {name}", reading, label, [trace, here], layout)


def _lines(ours: Sequence[tuple[Drawn, Surroundings]]) -> Chart:
    traces, told = [], []
    for owner, one in ours:
        assert one.line is not None
        xs, losses = one.line
        ups = [v if math.isfinite(v) else None for v in losses]
        line = {"color": owner.colour, "width": 2}
        hover = f"%{{meta.name}}, seed {one.seed}: %{{y:.4g}}"
        traces.append(owner.trace(hover, mode="lines", x=xs, y=ups, line=line))
        told.append(f"{owner.summary.name}, seed {one.seed}: from {min(losses):.4g} to {max(losses):.4g}")
    values = [v for _, one in ours if one.line for v in one.line[1] if math.isfinite(v)]
    steep = bool(values) and 0 < STEEP * min(values) < max(values)
    layout = {
        "xaxis": {"title": {"text": "along a random direction"}},
        "yaxis": LOG_AXIS if steep else {"rangemode": "tozero"},
        "hovermode": "x unified",
    }
    title = "Loss along a line through the weights"
    return Chart(title, "Wider is flatter", f"{title}. {'; '.join(told)}.", traces, layout, log=True)
