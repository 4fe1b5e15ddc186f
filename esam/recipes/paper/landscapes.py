"""Loss landscapes around the minima of SGD, SAM and ESAM: two random directions, filter-normalised.

Paper: ResNet-50 on ImageNet, 100 x 100 points, 10 pairs of directions. CPU scale: ResNet-8 on CIFAR-10, 21 x 21 x 3,
500 training images; and the Hessian's largest eigenvalue and trace for every seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Values
from esam.reproduce.scale import Scale
from esam.reproduce.store import Found

from .common import THREE, rows_of, spread, told
from .planes import draw_planes, plane_passes, planes_of, remembered

if TYPE_CHECKING:
    from esam.analysis import Landscape
    from esam.analysis.landscape import OnProgress
    from esam.train.trained import TrainedRun

MATVECS = 60
"""Products with the Hessian that its largest eigenvalue takes, about."""


def needs(scale: Scale) -> Needs:
    """Return the weights of the three methods, and the forward passes of planes and Hessians."""
    task, comparison = scale.landscape
    rows = rows_of(task, comparison, THREE)
    products = 6 * (MATVECS + scale.vectors) * scale.random_plane.images * len(comparison.seeds)
    grid = scale.random_plane
    passes = [(row.comparison.config, plane_passes(grid, len(comparison.seeds)) + products) for row in rows]
    sizes = {"grid": f"{grid.points} x {grid.points}, {grid.groups} pairs of directions, {grid.images:,} images"}
    return Needs(weights=rows, passes=tuple(passes), sizes=sizes)


def analyse(found: Found) -> Values:
    """Return each method's plane, and its sharpness, largest eigenvalue and trace over the seeds."""
    from esam.train.trained import random_landscape

    grid, methods = found.scale.random_plane, {}

    def look(run: TrainedRun, points: int, path: Path, progress: OnProgress) -> Landscape:
        return random_landscape(run, points=points, reach=grid.reach, groups=grid.groups, path=path, progress=progress)

    for row in found.needs.weights:
        plane = planes_of(found, row, grid, "landscape", look)
        curvature = [_curvature(found, run) for run in found.trained(row, images=grid.images).values()]
        keys = ("loss", "sharpness", "eigenvalue", "trace")
        methods[row.label] = {**plane, **{key: spread([one[key] for one in curvature]) for key in keys}}
    return {"task": found.needs.weights[0].title, "methods": methods}


def _curvature(found: Found, run: TrainedRun) -> dict[str, float]:
    from esam.analysis import hessian_trace, sharpness, top_eigenvalues

    objective, theta, vectors = run.objective, run.objective.parameters, found.scale.vectors

    def work() -> dict[str, float]:
        found.tell(f"Hessian of {run.record.name}, seed {run.record.seed}")
        return {
            "loss": float(objective(theta)),
            "sharpness": sharpness(objective, theta, rho=0.05),
            "eigenvalue": top_eigenvalues(objective, theta, k=1)[0],
            "trace": float(hessian_trace(objective, theta, vectors=vectors)[0]),
        }

    key = {"run": run.record.run["id"], "images": objective.count, "vectors": vectors}
    return remembered(found.kept(f"hessian-{run.record.method}-{run.record.run['id']}"), key, work)


def sheets(measured: Values) -> list[Sheet]:
    """Return how flat each minimum is."""
    head = ("Method", "Mean rise on the plane", "Sharpness R_S", "Largest eigenvalue", "Trace", "Training loss", "n")
    lines = [
        (
            label,
            told(own["rise"], 4),
            told(own["sharpness"], 4),
            told(own["eigenvalue"], 2),
            told(own["trace"], 1),
            told(own["loss"], 4),
            str(own["trace"]["n"]),
        )
        for label, own in measured["methods"].items()
    ]
    return [Sheet(f"Around the minima of {measured['task']}: lower is flatter", head, tuple(lines))]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw contours and surfaces side by side."""
    return draw_planes(measured["methods"], path)


ITEM = Item(
    name="landscapes",
    number="Figure 4",
    title="Loss landscapes around the minima of SGD, SAM and ESAM",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper={"points": 100, "groups": 10, "statement": "both SAM and ESAM improve the sharpness significantly"},
    notes=(
        "The picture is of the first seed. The rise is the mean over a coarser plane, 7 x 7, with the same directions; "
        "it and the other columns are over n seeds. The paper shows the picture alone.",
    ),
)
