"""What do the two kinds of landscape share: their values, their pictures, and figures that are worked out once?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esam.files import write_atomically
from esam.reproduce.item import Row
from esam.reproduce.scale import Grid
from esam.reproduce.store import Found
from esam.train.record import encode

from .common import slug, spread

if TYPE_CHECKING:
    from esam.analysis import Landscape
    from esam.analysis.landscape import OnProgress
    from esam.train.trained import TrainedRun

    Look = Callable[[TrainedRun, int, Path, OnProgress], Landscape]
    """(run, points a side, where to keep what is done, progress) -> its plane."""

COARSE = 7
"""Points a side of the plane that is measured for every seed; odd, so that theta is in the middle."""


def plane_passes(grid: Grid, seeds: int) -> float:
    """Return the forward passes of single images that a landscape takes, with the coarse ones of all seeds."""
    return float((grid.points**2 + seeds * COARSE**2) * grid.groups * grid.images)


def planes_of(found: Found, row: Row, grid: Grid, kind: str, look: Look) -> dict[str, Any]:
    """Return a method's values: the first seed's plane, and the loss's mean rise on a coarse one for every seed."""

    def plane(run: TrainedRun, points: int) -> Landscape:
        what = f"{kind} of {row.label}, seed {run.record.seed}, {points} x {points} points, {grid.groups} groups"
        path = found.kept(f"{slug(kind)}-{row.label.lower()}-{run.record.run['id']}-{points}")
        return look(run, points, path, found.progress(what))

    runs = found.trained(row, images=grid.images)
    coarse = [plane(run, COARSE) for run in runs.values()]
    rises = [float(one.mean.mean() - one.mean[COARSE // 2, COARSE // 2]) for one in coarse]
    return {**_values(plane(runs[min(runs)], grid.points)), "rise": spread(rises)}


def _values(plane: Landscape) -> dict[str, Any]:
    mean = [[float(f"{value:.6g}") for value in line] for line in plane.mean.tolist()]
    return {"axes": [list(axis) for axis in plane.axes], "losses": mean}


def draw_planes(methods: Mapping[str, Mapping[str, Any]], path: Path) -> list[Path]:
    """Draw contours and surfaces of the methods' planes, on one scale."""
    import torch

    from esam.analysis import Landscape
    from esam.analysis.plot import contours, surfaces

    planes = {}
    for label, own in methods.items():
        finite = [[float("nan") if value is None else value for value in line] for line in own["losses"]]
        losses = torch.tensor([finite], dtype=torch.float64)
        planes[label] = Landscape(tuple(tuple(axis) for axis in own["axes"]), losses)
    written = contours(path.with_name(f"{path.name}-contour"), planes)
    return written + surfaces(path.with_name(f"{path.name}-surface"), planes)


def remembered(path: Path, key: dict[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was worked out before for this key, or work it out now and keep it."""
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_bytes())
        if kept.get("key") == key:
            return dict(kept["values"])
    values = work()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, encode({"key": key, "values": values}))
    return dict(json.loads(path.read_bytes())["values"])
