"""What do the two kinds of landscape share: their values, their pictures, and figures that are worked out once?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esam.files import write_atomically
from esam.reproduce.scale import Grid
from esam.train.record import encode

from .common import spread

if TYPE_CHECKING:
    from esam.analysis import Landscape


COARSE = 7
"""Points a side of the plane that is measured for every seed; odd, so that theta is in the middle."""


def plane_passes(grid: Grid, seeds: int) -> float:
    """Return the forward passes of single images that a landscape takes, with the coarse ones of all seeds."""
    return float((grid.points**2 + seeds * COARSE**2) * grid.groups * grid.images)


def plane_values(plane: Landscape) -> dict[str, Any]:
    """Return a plane's axes and mean losses."""
    mean = [[float(f"{value:.6g}") for value in line] for line in plane.mean.tolist()]
    return {"axes": [list(axis) for axis in plane.axes], "losses": mean}


def rise_values(coarse: Sequence[Landscape]) -> dict[str, Any]:
    """Return by how much the loss rises on a coarse plane, the mean over its points, for each seed's model."""
    return spread([float(plane.mean.mean() - plane.mean[COARSE // 2, COARSE // 2]) for plane in coarse])


def draw_planes(methods: Mapping[str, Mapping[str, Any]], path: Path) -> list[Path]:
    """Draw contours and surfaces of the methods' planes, on one scale."""
    import torch

    from esam.analysis import Landscape
    from esam.analysis.plot import contours, surfaces

    planes = {}
    for label, own in methods.items():
        finite = [[float("nan") if value is None else value for value in line] for line in own["losses"]]
        losses = torch.tensor([finite], dtype=torch.float64)
        planes[label] = Landscape(tuple(tuple(axis) for axis in own["axes"]), losses, ("saved",))
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
