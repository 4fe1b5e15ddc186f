"""Adversarial landscapes: the axes are the gradients of two halves of the training images, made orthogonal.

Paper: ResNet-18 on CIFAR-10. CPU scale: ResNet-8 on CIFAR-10, 21 x 21 points, 2 divisions into halves, 500 images.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Values
from esam.reproduce.scale import Scale
from esam.reproduce.store import Found

from .common import THREE, rows_of, told
from .planes import draw_planes, plane_passes, planes_of

if TYPE_CHECKING:
    from esam.analysis import Landscape
    from esam.analysis.landscape import OnProgress
    from esam.train.trained import TrainedRun


def needs(scale: Scale) -> Needs:
    """Return the weights of the three methods, and the forward passes of the planes."""
    task, comparison = scale.adversarial
    rows, grid = rows_of(task, comparison, THREE), scale.adversarial_plane
    passes = tuple((row.comparison.config, plane_passes(grid, len(comparison.seeds))) for row in rows)
    sizes = {"grid": f"{grid.points} x {grid.points}, {grid.groups} divisions into halves, {grid.images:,} images"}
    return Needs(weights=rows, passes=passes, sizes=sizes)


def analyse(found: Found) -> Values:
    """Return each method's plane, and the loss's rise on it over the seeds."""
    from esam.analysis import adversarial_plane, even_axis, landscape

    grid = found.scale.adversarial_plane

    def look(run: TrainedRun, points: int, path: Path, progress: OnProgress) -> Landscape:
        objective, theta = run.objective, run.objective.parameters
        groups = [(objective, adversarial_plane(objective, theta, seed=seed)) for seed in range(grid.groups)]
        return landscape(groups, theta, [even_axis(grid.reach, points)] * 2, path=path, progress=progress)

    rows = found.needs.weights
    methods = {row.label: planes_of(found, row, grid, "adversarial landscape", look) for row in rows}
    return {"task": rows[0].title, "methods": methods}


def sheets(measured: Values) -> list[Sheet]:
    """Return how much the loss rises."""
    lines = [(label, told(own["rise"], 4), str(own["rise"]["n"])) for label, own in measured["methods"].items()]
    head = ("Method", "Mean rise on the plane", "n")
    return [Sheet(f"Along adversarial directions, {measured['task']}: lower is flatter", head, tuple(lines))]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw contours and surfaces side by side."""
    return draw_planes(measured["methods"], path)


ITEM = Item(
    name="adversarial-landscapes",
    number="Figure of A.5",
    title="Loss landscapes along adversarial perturbations",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper={"statement": "both SAM and ESAM improve the sharpness significantly in comparison to SGD"},
    notes=(
        "The picture is of the first seed; the rise is the mean over a coarser plane, 7 x 7, over n seeds.",
        "The two directions have length 1 for every method, so that equal distances are compared; the paper's unit is "
        "the learning rate times the gradient, which shrinks with the gradient of the minimum it looks at.",
    ),
)
