"""What does the loss look like around the trained weights? As ``esam analyze RUN --pictures FOLDER`` left it."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esam.analysis.landscape import Landscape
from esam.analysis.plot import contours, lines
from esam.extras import missing
from esam.report.charts import Drawn

ANALYSIS_NAME = "analysis.json"


@dataclass(frozen=True)
class LandscapeData:
    """The loss around the weights of one run: on a plane, along a line, or both."""

    run: str
    """The run's identity."""
    seed: int
    plane: Landscape | None
    line: Landscape | None


@dataclass(frozen=True)
class Picture:
    """A drawing on the page: its heading, and the bytes of an SVG file."""

    title: str
    svg: bytes


def read_analyses(folder: Path) -> list[LandscapeData]:
    """Read every analysis below a folder that has a landscape; a file of another kind is passed over."""
    found = []
    for path in sorted(folder.rglob(ANALYSIS_NAME)):
        try:
            read = json.loads(path.read_bytes())
            plane, line = (_landscape(read[name], axes) if name in read else None for name, axes in KINDS.items())
            run, seed = str(read["run"]["id"]), int(read["run"]["seed"])
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            continue
        if plane is not None or line is not None:
            found.append(LandscapeData(run, seed, plane, line))
    return found


KINDS = {"landscape": 2, "line": 1}
"""The entries of an analysis, with the number of their axes."""


def _landscape(read: Mapping[str, Any], count: int) -> Landscape:
    axes = tuple(tuple(float(value) for value in axis) for axis in read["axes"])
    groups = [[math.nan if value is None else float(value) for value in row] for row in read["groups"]]
    if len(axes) != count or not groups or any(len(row) != math.prod(map(len, axes)) for row in groups):
        raise ValueError("a loss for each point of the axes")
    return Landscape(axes, torch.tensor(groups, dtype=torch.float64).reshape(len(groups), *map(len, axes)))


def landscape_pictures(drawn: Sequence[Drawn], analyses: Sequence[LandscapeData]) -> list[Picture]:
    """Draw the planes side by side with the same levels, and all lines in one picture; nothing without matplotlib."""
    owners = {str(run.run.get("id")): one for one in drawn for run in one.summary.group.runs}
    known = sorted(
        (one for one in analyses if one.run in owners), key=lambda one: (drawn.index(owners[one.run]), one.seed)
    )
    names = {id(one): f"{owners[one.run].name}, seed {one.seed}" for one in known}
    colours = {names[id(one)]: owners[one.run].style.colour for one in known}
    planes = {names[id(one)]: one.plane for one in known if one.plane is not None and one.plane.mean.isfinite().any()}
    along = {names[id(one)]: one.line for one in known if one.line is not None}
    if missing("matplotlib", purpose="landscapes"):
        return []
    found = []
    if planes:
        heading = "Loss around the weights: closer lines mean a sharper minimum"
        found.append(Picture(heading, _svg(contours, planes, colours)))
    if along:
        found.append(Picture("Loss along a line through the weights: wider is flatter", _svg(lines, along, colours)))
    return found


def _svg(draw: Callable[..., Any], landscapes: Mapping[str, Landscape], colours: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    draw(file, landscapes, colours=colours)
    return file.getvalue()
