"""Adversarial landscapes: the axes are the gradients of two halves of the training images, made orthogonal.

Paper: ResNet-18 on CIFAR-10. CPU scale: ResNet-8 on CIFAR-10, 21 x 21 points, 2 divisions into halves, 500 images.
"""

from __future__ import annotations

from pathlib import Path

from esam.analysis import Landscape, adversarial_plane, even_axis, landscape
from esam.analysis.landscape import OnProgress
from esam.report.sheets import Sheet
from esam.train.trained import TrainedRun

from ..engine.inputs import Inputs
from ..engine.item import Item
from .planes import LandscapeFigures, draw_planes, minimum, plane_needs


def analyse(inputs: Inputs) -> LandscapeFigures:
    """Return each method's plane, and the loss's rise on it over the seeds."""
    size, every = inputs.scale.adversarial_plane, inputs.needs.weights

    def plane(run: TrainedRun, points: int, path: Path, progress: OnProgress) -> Landscape:
        objective, theta = run.objective, run.objective.parameters
        groups = [(objective, adversarial_plane(objective, theta, seed=seed)) for seed in range(size.groups)]
        return landscape(groups, theta, [even_axis(size.reach, points)] * 2, path=path, progress=progress)

    minima = tuple(minimum(inputs, runs, size, "adversarial landscape", plane) for runs in every)
    return LandscapeFigures(every[0].workload, minima)


def sheets(measured: LandscapeFigures) -> list[Sheet]:
    """Return how much the loss rises."""
    lines = ((own.label, own.rise.words(4), own.train_accuracy.words(2), str(own.rise.n)) for own in measured.minima)
    head = ("Method", "Mean rise on the plane", "Training accuracy, %", "n")
    return [Sheet(f"Along adversarial directions, {measured.workload.title}: lower is flatter", head, tuple(lines))]


ITEM = Item(
    name="adversarial-landscapes",
    number="Figure of A.5",
    title="Loss landscapes along adversarial perturbations",
    kind=LandscapeFigures,
    needs=lambda scale: plane_needs(scale, ("ResNet-18", "CIFAR-10"), scale.adversarial_plane, "divisions into halves"),
    analyse=analyse,
    sheets=sheets,
    draw=draw_planes,
    notes=(
        "The picture is of the first seed; the rise is the mean over a coarser plane, 7 x 7, over n seeds.",
        "The two directions have length 1 for every method, so that equal distances are compared; the paper's unit is "
        "the learning rate times the gradient, which shrinks with the gradient of the minimum it looks at.",
    ),
)
