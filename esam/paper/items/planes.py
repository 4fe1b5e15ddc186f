"""What do the two kinds of landscape share: their values, their needs and their pictures?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from esam.analysis import Landscape
from esam.analysis.landscape import OnProgress
from esam.analysis.plot import contours, surfaces
from esam.train.trained import TrainedRun

from ..engine.inputs import Inputs
from ..engine.item import MethodRuns, Needs, Workload, runs_of
from ..engine.scale import ExperimentScale, PaperTask, PlaneSize
from ..engine.values import Repeated, slug, with_gaps
from .tables import THREE

Plane = Callable[[TrainedRun, int, Path, OnProgress], Landscape]
"""(run, points a side, where to keep what is done, progress) -> the loss on a plane."""
COARSE = 7
"""Points a side of the plane that is measured for every seed; odd, so that theta is in the middle."""


@dataclass(frozen=True)
class Minimum:
    """What surrounds the weights that a method came to, over its seeds; the Hessian's figures where they were taken."""

    method: str
    label: str
    train_accuracy: Repeated
    axes: tuple[tuple[float, ...], ...]
    losses: tuple[tuple[float | None, ...], ...]
    """Of the first seed, on the plane."""
    rise: Repeated
    """The loss's mean rise on a coarse plane."""
    loss: Repeated | None = None
    sharpness: Repeated | None = None
    eigenvalue: Repeated | None = None
    trace: Repeated | None = None
    train_loss: Repeated | None = None
    """On all its training images; None where an earlier version took the figures."""


@dataclass(frozen=True)
class LandscapeFigures:
    """The minima of the methods on one workload."""

    workload: Workload
    minima: tuple[Minimum, ...]


def plane_needs(scale: ExperimentScale, task: PaperTask, size: PlaneSize, kind: str, products: int = 0) -> Needs:
    """Return the weights of the three methods, and the forward passes of planes and of ``products`` with Hessians."""
    comparison = scale.comparisons[task]
    weights, seeds = runs_of(task, comparison, THREE), len(comparison.seeds)
    points = (size.points**2 + seeds * COARSE**2) * size.groups
    passes = float((points + 6 * products * seeds) * size.images)
    words = f"{size.points} x {size.points}, {size.groups} {kind}, {size.images:,} images"
    return Needs(weights=weights, passes=tuple((runs.configs[0], passes) for runs in weights), sizes={"grid": words})


def minimum(inputs: Inputs, runs: MethodRuns, size: PlaneSize, kind: str, plane: Plane) -> Minimum:
    """Return the planes around a method's minima."""

    def measure(run: TrainedRun, points: int) -> Landscape:
        what = f"{kind} of {runs.label}, seed {run.record.seed}, {points} x {points} points, {size.groups} groups"
        path = inputs.cache(f"{slug(kind)}-{runs.method}-{run.record.run['id']}-{points}")
        return plane(run, points, path, inputs.progress(what))

    trained = inputs.trained(runs, images=size.images)
    coarse = [measure(run, COARSE).mean for run in trained.values()]
    fine = measure(trained[min(trained)], size.points)
    return Minimum(
        method=runs.method,
        label=runs.label,
        train_accuracy=inputs.train_accuracy(runs),
        train_loss=inputs.train_loss(runs),
        axes=tuple(map(tuple, fine.axes)),
        losses=tuple(tuple(float(f"{value:.6g}") for value in line) for line in fine.mean.tolist()),
        rise=Repeated(tuple(float(mean.mean() - mean[COARSE // 2, COARSE // 2]) for mean in coarse)),
    )


def draw_planes(measured: LandscapeFigures, path: Path) -> list[Path]:
    """Draw contours and surfaces of the methods' planes side by side, on one scale."""
    planes = {}
    for own in measured.minima:
        losses = torch.tensor([[with_gaps(line) for line in own.losses]], dtype=torch.float64)
        planes[own.label] = Landscape(own.axes, losses)
    written = contours(path.with_name(f"{path.name}-contour"), planes)
    return written + surfaces(path.with_name(f"{path.name}-surface"), planes)
