"""Loss landscapes around the minima of SGD, SAM and ESAM: two random directions, filter-normalised.

Paper: ResNet-50 on ImageNet, 100 x 100 points, 10 pairs of directions. CPU scale: ResNet-8 on CIFAR-10, 21 x 21 x 3,
500 training images; and the Hessian's largest eigenvalue and trace for every seed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from esam.analysis import Landscape, hessian_trace, sharpness, top_eigenvalues
from esam.analysis.landscape import OnProgress
from esam.report.sheets import Sheet
from esam.train.trained import TrainedRun, random_landscape

from ..engine.inputs import Inputs
from ..engine.item import Item, Needs
from ..engine.scale import ExperimentScale
from ..engine.values import ABSENT, Repeated, remembered
from .planes import LandscapeFigures, draw_planes, minimum, plane_needs

MATVECS = 60
"""Products with the Hessian that its largest eigenvalue takes, about."""
HESSIAN = {"sharpness": 4, "eigenvalue": 2, "trace": 1, "loss": 4}
"""What is taken of every seed's minimum beside its plane, and its decimals in the table."""


def needs(scale: ExperimentScale) -> Needs:
    """Return the weights of the three methods, and the forward passes of planes and Hessians."""
    products = MATVECS + scale.hessian_vectors
    return plane_needs(scale, scale.landscape, scale.random_plane, "pairs of directions", products)


def analyse(inputs: Inputs) -> LandscapeFigures:
    """Return each method's plane, and its sharpness, largest eigenvalue and trace over the seeds."""
    size, every, minima = inputs.scale.random_plane, inputs.needs.weights, []

    def plane(run: TrainedRun, points: int, path: Path, progress: OnProgress) -> Landscape:
        return random_landscape(run, points=points, reach=size.reach, groups=size.groups, path=path, progress=progress)

    for runs in every:
        own = minimum(inputs, runs, size, "landscape", plane)
        seeds = [_hessian(inputs, run) for run in inputs.trained(runs, images=size.images).values()]
        over_seeds: dict[str, Any] = {name: Repeated(tuple(seed[name] for seed in seeds)) for name in HESSIAN}
        minima.append(dataclasses.replace(own, **over_seeds))
    return LandscapeFigures(every[0].workload, tuple(minima))


def _hessian(inputs: Inputs, run: TrainedRun) -> dict[str, float | None]:
    objective, theta, vectors = run.objective, run.objective.parameters, inputs.scale.hessian_vectors

    def work() -> dict[str, float | None]:
        inputs.tell(f"Hessian of {run.record.name}, seed {run.record.seed}")
        return {
            "loss": float(objective(theta)),
            "sharpness": sharpness(objective, theta, rho=0.05),
            "eigenvalue": top_eigenvalues(objective, theta, k=1)[0],
            "trace": float(hessian_trace(objective, theta, vectors=vectors)[0]),
        }

    key = {"run": run.record.run["id"], "images": objective.count, "vectors": vectors}
    path = inputs.cache(f"hessian-{run.record.method}-{run.record.run['id']}")
    return remembered(path, key, dict[str, float | None], work)


def sheets(measured: LandscapeFigures) -> list[Sheet]:
    """Return how flat each minimum is."""
    head = ("Method", "Mean rise on the plane", "Sharpness R_S", "Largest eigenvalue", "Trace", "Training loss")
    lines = []
    for own in measured.minima:
        taken = [(getattr(own, name), decimals) for name, decimals in HESSIAN.items()]
        cells = (figure.words(decimals) if figure else ABSENT for figure, decimals in taken)
        lines.append((own.label, own.rise.words(4), *cells, own.train_accuracy.words(2), str(own.rise.n)))
    title = f"Around the minima of {measured.workload.title}: lower is flatter"
    return [Sheet(title, (*head, "Training accuracy, %", "n"), tuple(lines))]


ITEM = Item(
    name="landscapes",
    number="Figure 4",
    title="Loss landscapes around the minima of SGD, SAM and ESAM",
    kind=LandscapeFigures,
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw_planes,
    notes=(
        "The picture is of the first seed. The rise is the mean over a coarser plane, 7 x 7, with the same directions; "
        "it and the other columns are over n seeds. The paper shows the picture alone.",
    ),
)
