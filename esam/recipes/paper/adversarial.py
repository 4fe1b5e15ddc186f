"""Adversarial landscapes: the axes are the gradients of two halves of the training images, made orthogonal.

Paper: ResNet-18 on CIFAR-10. CPU scale: ResNet-8 on CIFAR-10, 21 x 21 points, 2 divisions into halves, 500 images.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Values
from esam.reproduce.scale import Scale
from esam.reproduce.store import Found

from .common import THREE, rows_of, told
from .planes import draw_planes, plane_passes, plane_values


def needs(scale: Scale) -> Needs:
    """Return the weights of the first seed of the three methods, and the forward passes of the planes."""
    task, comparison = scale.adversarial
    rows = rows_of(task, dataclasses.replace(comparison, seeds=comparison.seeds[:1]), THREE)
    grid = scale.adversarial_plane
    sizes = {"grid": f"{grid.points} x {grid.points}, {grid.groups} divisions into halves, {grid.images:,} images"}
    return Needs(weights=rows, passes=tuple((row.comparison.config, plane_passes(grid)) for row in rows), sizes=sizes)


def analyse(found: Found) -> Values:
    """Return each method's plane."""
    from esam.analysis import adversarial_plane, even_axis, landscape

    grid, methods = found.scale.adversarial_plane, {}
    axis = even_axis(grid.reach, grid.points)
    for row in found.needs.weights:
        (run,) = found.trained(row, images=grid.images).values()
        objective, theta = run.objective, run.objective.parameters
        found.tell(f"adversarial landscape of {row.label}: {grid.points} x {grid.points} points, {grid.groups} groups")
        groups = [(objective, adversarial_plane(objective, theta, seed=seed)) for seed in range(grid.groups)]
        kept = found.kept(f"adversarial-{row.label.lower()}-{run.record.run['id']}")
        methods[row.label] = plane_values(landscape(groups, theta, [axis, axis], path=kept))
    return {"task": found.needs.weights[0].title, "methods": methods}


def sheets(measured: Values) -> list[Sheet]:
    """Return how much the loss rises."""
    lines = [(label, told(own["rise"], 4), str(own["rise"]["n"])) for label, own in measured["methods"].items()]
    head = ("Method", "Mean rise on the plane", "n (divisions)")
    return [Sheet(f"Along adversarial directions, {measured['task']}: lower is flatter", head, tuple(lines))]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw contours and surfaces side by side."""
    return draw_planes(measured["methods"], path)


ITEM = Item(
    name="adversarial-landscapes",
    number="Figure of A.6",
    title="Loss landscapes along adversarial perturbations",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper={"statement": "both SAM and ESAM improve the sharpness significantly in comparison to SGD"},
    notes=(
        "The two directions have length 1 for every method, so that equal distances are compared; the paper's unit is "
        "the learning rate times the gradient, which shrinks with the gradient of the minimum it looks at.",
    ),
)
