"""Figure 4 and the figure of A.5: how flat are the minima of SGD, SAM and ESAM?

"Both SAM and ESAM improve the sharpness significantly in comparison to SGD": random planes around ResNet-50 on
ImageNet (100 x 100 points, 10 pairs of directions), and planes of two gradients on CIFAR-10. Beside the pictures:
the paper's own R_S, the Hessian's largest eigenvalue and its trace, of every seed's minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from esam.analysis import (
    ModelObjective,
    adversarial_plane,
    even_axis,
    hessian_trace,
    landscape,
    random_plane,
    sharpness,
    top_eigenvalues,
)
from esam.analysis.picture import write_picture
from esam.report.sheets import Sheet

from . import rules
from .hyperparameters import CIFAR6, LABELS, RESNET, THREE, Column, Scale
from .jobs import Job, Training, load_trained, pass_hours, training
from .results import Claim, Judge, Results
from .rules import BySeed, Verdict
from .store import Line, Store

NUMBER, TITLE = "Figure 4, figure of A.5", "How flat are the minima of SGD, SAM and ESAM?"
REACH = 0.3
"""Of random planes, in filter-normalised units (rule 8)."""
ADVERSARIAL_REACH = 20.0
"""Of adversarial planes, in units of eta times the gradient (rule 9)."""
RHO = 0.05
IMAGENET = ("ResNet-50", "ImageNet")
LEAST = 1e-8
"""What a figure counts as where it is not positive, before its logarithm is taken."""


def objective_of(store: Store, scale: Scale, run: Training, images: int) -> ModelObjective:
    """Return the loss on some of a run's training images, in eval mode, as a function of its weights."""
    net, (x, y) = load_trained(store, scale, run)
    step = max(1, len(y) // images)
    return ModelObjective(net, [(x[::step][:images], y[::step][:images])])


def planes(objective: ModelObjective, pairs: int, eta: float | None = None) -> list[Any]:
    """Return pairs of directions: random, or by ``eta`` times the gradients of two halves of the images (rule 9)."""
    theta = objective.parameters
    if eta is None:
        return [(objective, random_plane(theta, seed=seed)) for seed in range(pairs)]
    return [(objective, adversarial_plane(objective, theta, seed=seed, eta=eta)) for seed in range(pairs)]


@dataclass(frozen=True)
class Flatness(Job):
    """The figures of one minimum."""

    run: Training

    def do(self, store: Store, scale: Scale) -> None:
        """Measure loss, R_S, eigenvalue, trace, and the mean rise on both kinds of planes."""
        objective = objective_of(store, scale, self.run, scale.images)
        theta, (points, pairs), lr = objective.parameters, scale.coarse, self.run.config.lr
        near, far = [even_axis(REACH, points)] * 2, [even_axis(ADVERSARIAL_REACH, points)] * 2
        loss = float(objective(theta))
        found = {
            "loss": loss,
            "R_S": sharpness(objective, theta, rho=RHO),
            "eigenvalue": top_eigenvalues(objective, theta, k=1)[0],
            "trace": float(hessian_trace(objective, theta, vectors=scale.vectors)[0]),
            "rise": float(landscape(planes(objective, pairs), theta, near).losses.mean()) - loss,
            "adversarial rise": float(landscape(planes(objective, pairs, eta=lr), theta, far).losses.mean()) - loss,
        }
        store.write(f"{self.name}.jsonl", [{"images": objective.count, **found}])

    def hours(self, scale: Scale) -> float:
        """Return the hours of both planes, and of 60 products with the Hessian and those of the trace."""
        points, pairs = scale.coarse
        passes = 2 * points**2 * pairs + 6 * (60 + scale.vectors)
        return pass_hours(self.run.config) * scale.images * passes


@dataclass(frozen=True)
class Plane(Job):
    """A fine plane around one minimum, for the picture."""

    run: Training
    adversarial: bool

    def do(self, store: Store, scale: Scale) -> None:
        """Measure the loss on the plane; what is done is kept in a file beside, and gone on with."""
        objective = objective_of(store, scale, self.run, scale.plane_images)
        points, pairs = scale.gradient_plane if self.adversarial else scale.plane
        directions = planes(objective, pairs, eta=self.run.config.lr if self.adversarial else None)
        axis = even_axis(ADVERSARIAL_REACH if self.adversarial else REACH, points)
        work = store.folder / f"{self.name}.work.json"
        work.parent.mkdir(parents=True, exist_ok=True)
        found = landscape(directions, objective.parameters, [axis, axis], path=work)
        losses = [[float(f"{value:.5g}") for value in row] for row in found.mean.tolist()]
        store.write(f"{self.name}.jsonl", [{"axis": axis, "losses": losses, "pairs": pairs, "images": objective.count}])
        work.unlink(missing_ok=True)

    def hours(self, scale: Scale) -> float:
        """Return the hours of its points."""
        points, pairs = scale.gradient_plane if self.adversarial else scale.plane
        return pass_hours(self.run.config) * scale.plane_images * points**2 * pairs


def jobs(scale: Scale) -> list[Job]:
    """Return the planes of both pictures, of the first seed."""
    found: list[Job] = []
    for column, kind in ((IMAGENET, "random"), (RESNET, "adversarial")):
        for method in THREE:
            run = training(scale, column, method, 0)
            found.append(Plane(run.name.replace("train/", f"plane/{kind}/"), run, kind == "adversarial"))
    return found


def flatness_jobs(scale: Scale) -> list[Job]:
    """Return the figures of every minimum of Table 1 and of ImageNet's first column."""
    seeds = dict.fromkeys(CIFAR6, scale.seeds) | {IMAGENET: scale.few}
    runs = [training(scale, c, method, seed) for c, n in seeds.items() for seed in range(n) for method in THREE]
    return [Flatness(run.name.replace("train/", "flatness/"), run) for run in runs]


def figures(results: Results, column: Column, method: str, pick: Callable[[Line], float]) -> BySeed:
    """Return a figure of each seed's minimum."""
    found = {}
    for seed in range(results.scale.seeds):
        name = training(results.scale, column, method, seed).name.replace("train/", "flatness/")
        if lines := results.store.lines(f"{name}.jsonl"):
            found[seed] = pick(lines[0])
    return found


PLANE = "rise on a random plane"
PICKS: dict[str, Callable[[Line], float]] = {
    "R_S": lambda line: line["R_S"],
    "eigenvalue / loss": lambda line: line["eigenvalue"] / line["loss"],
    "trace / loss": lambda line: line["trace"] / line["loss"],
    PLANE: lambda line: line["rise"],
    "rise on an adversarial plane": lambda line: line["adversarial rise"],
}


def tables(results: Results) -> Sequence[Sheet]:
    """Return the geometric means of every minimum's figures over seeds."""
    names = ("loss", "R_S", "eigenvalue", "trace", "rise", "adversarial rise")
    rows = []
    for column in (IMAGENET, *CIFAR6):
        for method in THREE:
            cells = []
            for name in names:
                values = figures(results, column, method, itemgetter(name))
                cells.append(f"{math.exp(fmean(map(_log, values.values()))):.3g}" if values else "–")
            if cells[0] != "–":
                rows.append((f"{results.title(column)}: {LABELS[method]}", *cells, str(len(values))))
    head = ("Minimum", "Training loss", "R_S", "Eigenvalue", "Trace", "Rise", "Adversarial rise", "n")
    return [Sheet("Flatness: geometric means over seeds; lower is flatter", head, tuple(rows))]


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the two planes: contours of the loss over its value in the middle, one colour scale for all methods."""
    pictures = (
        ("figure4.png", "random", IMAGENET, "Figure 4", "filter-normalised units"),
        ("appendix5.png", "adversarial", RESNET, "Figure of A.5", "units of eta times the gradient"),
    )
    written = []
    for file, kind, column, words, unit in pictures:
        runs = {method: training(results.scale, column, method, 0).name for method in THREE}
        names = {method: f"{name.replace('train/', f'plane/{kind}/')}.jsonl" for method, name in runs.items()}
        found = {method: lines[0] for method, name in names.items() if (lines := results.store.lines(name))}
        if len(found) == len(THREE):
            title = f"{words}: {results.title(column)}, seed 0, {found['base']['images']} training images"
            written += write_picture(folder / file, _contours(found, title, unit), width=9.0, height=3.4)
    return written


def _contours(planes: dict[str, Line], title: str, unit: str) -> Callable[[Any], None]:
    def drawn(figure: Any) -> None:
        import numpy as np
        from matplotlib.colors import LogNorm

        every = figure.subplots(1, len(planes), sharey=True)
        rises = {}
        for method, line in planes.items():
            losses = np.array(line["losses"], dtype=float)
            middle = losses[losses.shape[0] // 2, losses.shape[1] // 2]
            rises[method] = np.clip(losses - middle, 1e-12, None)
        high = max(float(rise.max()) for rise in rises.values())
        norm = LogNorm(high * 1e-4, high)
        levels = np.geomspace(high * 1e-4, high, 13)
        for axes, (method, rise) in zip(every, rises.items(), strict=True):
            axis = planes[method]["axis"]
            shown = axes.contourf(axis, axis, np.clip(rise, levels[0], None), levels=levels, norm=norm, cmap="viridis")
            axes.contour(axis, axis, rise, levels=levels[::3], colors="white", linewidths=0.6)
            axes.set_title(f"{LABELS[method]}: mean rise {float(rise.mean()):.3g}", fontsize=9)
            axes.set(xlabel=f"first direction,\n{unit}", aspect="equal")
        every[0].set(ylabel="second direction")
        bar = figure.colorbar(shown, ax=every, label="rise of the loss", ticks=levels[::4])
        bar.ax.set_yticklabels([f"{level:.0e}" for level in levels[::4]])
        side, pairs = len(planes["base"]["axis"]), planes["base"]["pairs"]
        figure.suptitle(f"{title}, {side} x {side} points, mean of {pairs} pairs", fontsize=9)

    return drawn


def _log(value: float) -> float:
    return math.log(max(value, LEAST))


def _flatter(method: str, what: str, columns: Sequence[Column]) -> Judge:
    """Return the judge that a figure of a method's minimum is below SGD's, in logarithms, paired by seed (rule 7)."""

    def judge(results: Results) -> Verdict:
        gaps = []
        for column in columns:
            base, ours = (figures(results, column, m, PICKS[what]) for m in ("base", method))
            gap = {seed: _log(base[seed]) - _log(ours[seed]) for seed in base.keys() & ours.keys()}
            gaps += [gap] if gap else []
        shared = rules.over_tasks(gaps)
        if not shared:
            return Verdict(rules.NOT_RUN, "no minima measured")
        found = rules.interval(list(shared.values()))
        ratio, low, high = (math.exp(-value) for value in (found.mean, found.high, found.low))
        words = f"{ratio:.2f} times SGD's ({low:.2f} to {high:.2f}; {len(gaps)} tasks, n = {found.n} seeds)"
        return rules.superior(found, words)

    return judge


CLAIMS = (
    *(
        Claim(f"{LABELS[method]}'s minimum is flatter: {what}", "significantly", _flatter(method, what, CIFAR6))
        for method in ("sam", "esam")
        for what in PICKS
    ),
    Claim("SAM's minimum is flatter on ImageNet: random plane", "Figure 4", _flatter("sam", PLANE, [IMAGENET])),
    Claim("ESAM's minimum is flatter on ImageNet: random plane", "Figure 4", _flatter("esam", PLANE, [IMAGENET])),
)
