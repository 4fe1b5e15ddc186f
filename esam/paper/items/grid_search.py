"""The grid search of the appendix: learning rate, weight decay and batch size, tuned for each method separately.

Paper: learning rate .01 to .2, weight decay 5e-4 and 1e-3, batch 64 to 256; it prints the choice alone (Table of A.7).
CPU scale: the same grid with ResNet-8 on 2,500 images of CIFAR-10, 6 epochs, judged on held-out images.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from esam.analysis.plot import Curve, curves
from esam.optim import METHODS
from esam.report.colours import SPARE
from esam.report.sheets import Sheet

from ..engine.inputs import Inputs
from ..engine.item import Item, MethodRuns, Needs, runs_of, with_changes
from ..engine.scale import ExperimentScale, SearchGrid
from ..engine.values import ABSENT, Repeated
from .tables import THREE

PAPER = {"base": "0.05, 0.0005, 128", "sam": "0.05, 0.001, 128", "esam": "0.05, 0.001, 128"}
"""Its choice for ResNet-18."""
POINT = "Learning rate, weight decay, batch size"


@dataclass(frozen=True)
class SearchPoint:
    """What a method reached at a point of the grid; accuracies in per cent, on held-out and on training images."""

    method: str
    label: str
    lr: float
    weight_decay: float
    batch_size: int
    accuracy: Repeated
    train_accuracy: Repeated
    rho: float | None = None
    """Where it was searched."""

    @property
    def point(self) -> str:
        """The point in words: "0.05, 0.001, 128"."""
        words = f"{self.lr:g}, {self.weight_decay:g}, {self.batch_size}"
        return words if self.rho is None else f"{words}, rho {self.rho:g}"


@dataclass(frozen=True)
class SearchFigures:
    """Every method at every point."""

    points: tuple[SearchPoint, ...]

    def of(self, method: str) -> list[SearchPoint]:
        """Return a method's points, the best first."""
        own = [one for one in self.points if one.method == method]
        return sorted(own, key=lambda one: one.accuracy.mean or 0.0, reverse=True)


def needs(scale: ExperimentScale) -> Needs:
    """Return a run for each method and point of the grid."""
    search, runs = scale.search, list[MethodRuns]()
    for method in THREE:
        for lr, decay, size, rho in _points(search, radius=method != "base"):
            start = with_changes(search.start, lr=lr, weight_decay=decay, batch_size=size)
            own = {k: v for k, v in start.settings.get(method, {}).items() if k != "weight_decay"}
            own |= {} if rho is None else {"rho": rho}
            runs += runs_of(("ResNet-18", "CIFAR-10"), dataclasses.replace(start, settings={method: own}), (method,))
    every = {"lr": search.lrs, "decay": search.weight_decays, "batch": search.batch_sizes}
    return Needs(runs=tuple(runs), sizes={name: ", ".join(f"{v:g}" for v in values) for name, values in every.items()})


def _points(search: SearchGrid, *, radius: bool) -> list[tuple[float, float, int, float | None]]:
    """Return learning rate, weight decay, batch size and perhaps rho of each point of a method's search.

    With rho, half of the grid is taken, in which each value meets each value of every other kind as often.
    """
    places = list(product(enumerate(search.lrs), enumerate(search.weight_decays), search.batch_sizes))
    if not radius or not search.rhos:
        return [(lr, decay, size, None) for (_, lr), (_, decay), size in places]
    return [(lr, decay, size, search.rhos[(i + j + 1) % 2]) for (i, lr), (j, decay), size in places]


def analyse(inputs: Inputs) -> SearchFigures:
    """Return the held-out accuracy of each method at every point."""
    points = []
    for runs in inputs.needs.runs:
        config, accuracies = runs.configs[0], (inputs.accuracy(runs), inputs.train_accuracy(runs))
        point = (config.lr, config.weight_decay, config.batch_size)
        rho = config.settings.get("rho") if inputs.scale.search.rhos else None
        points.append(SearchPoint(runs.method, runs.label, *point, *accuracies, rho=rho))
    return SearchFigures(tuple(points))


def sheets(measured: SearchFigures) -> list[Sheet]:
    """Return the best point of each method beside the paper's, and the whole grid."""
    best = [measured.of(method)[0] for method in THREE]
    chosen = ((b.label, b.point, PAPER[b.method], b.accuracy.words(2), b.train_accuracy.words(2)) for b in best)
    grid: dict[str, dict[str, str]] = {}
    for one in measured.points:
        grid.setdefault(one.point, {})[one.method] = one.accuracy.words(2)
    lines = ((point, *(cells.get(method, ABSENT) for method in THREE)) for point, cells in grid.items())
    head = ("Method", POINT, "paper", "Held-out accuracy, %", "Training, %")
    return [
        Sheet("The best of each method's own search", head, tuple(chosen)),
        Sheet("Held-out accuracy, %", (POINT, *(b.label for b in best)), tuple(lines)),
    ]


def draw(measured: SearchFigures, path: Path) -> list[Path]:
    """Draw the best accuracy at each learning rate."""
    drawn, colours = {}, {}
    for own in (measured.of(method) for method in THREE):
        highest = {one.lr: one.accuracy.mean or 0.0 for one in reversed(own)}  # the best is written last
        lrs = sorted(highest)
        drawn[own[0].label] = Curve(lrs, [highest[lr] for lr in lrs])
        colours[own[0].label] = METHODS[own[0].method].colour or SPARE
    label, title = "held-out accuracy, %", "Best over weight decays and batch sizes"
    return curves(path, drawn, x_label="learning rate", y_label=label, title=title, colours=colours)


ITEM = Item(
    name="grid-search",
    number="Grid of A.7",
    title="Grid search of learning rate, weight decay and batch size",
    kind=SearchFigures,
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    notes=(
        "The paper tunes on the test accuracy; here a fifth of the training images, held out, decides.",
        "Where rho is searched too, every method has as many points: those with a radius search half of the grid, in "
        "which each value meets each other one.",
    ),
)
