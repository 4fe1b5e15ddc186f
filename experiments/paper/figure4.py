"""Figure 4 and the figure of A.5: how flat are the minima of SGD, SAM and ESAM?

"Both SAM and ESAM improve the sharpness significantly in comparison to SGD": random planes around ResNet-50 on
ImageNet (100 x 100 points, 10 pairs of directions), and planes of two gradients on CIFAR-10. Beside the pictures:
the paper's own R_S, the Hessian's largest eigenvalue and its trace, of every seed's minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from statistics import fmean

import torch

from esam import analysis
from esam.analysis import Landscape, ModelObjective
from esam.analysis.directions import Direction, orthogonal
from esam.analysis.objective import norm_of, value_and_gradient
from esam.analysis.plot import contours
from esam.report.sheets import Sheet
from esam.train.build import chosen_device, prepared_model
from esam.train.datasets import load_data
from esam.train.loaded_run import run_weights, training_objective
from esam.train.record import read_record

from . import rules
from .hyperparameters import CIFAR6, LABELS, RESNET, THREE, Column, Scale
from .jobs import Job, Training, trainings
from .results import Claim, Judge, Results
from .rules import BySeed, Verdict
from .store import EPOCHS, RECORD, Line, Store

NUMBER, TITLE = "Figure 4, figure of A.5", "How flat are the minima of SGD, SAM and ESAM?"
REACH = 0.3
"""Of random planes, in filter-normalised units (rule 8)."""
ADVERSARIAL_REACH = 20.0
"""Of adversarial planes, in units of eta times the gradient (rule 9)."""
RHO = 0.05
IMAGENET = ("ResNet-50", "ImageNet")
PICTURED = {"random": IMAGENET, "adversarial": RESNET}
"""What each kind of plane is drawn around."""
LEAST = 1e-8
"""What a figure counts as where it is not positive, before its logarithm is taken."""


def objective_of(store: Store, scale: Scale, run: Training, images: int) -> ModelObjective:
    """Return the loss on some of a run's training images, in eval mode, as a function of its last weights.

    Weights are not committed: where they are not here, the run is trained again; what it saw, if committed, stays.
    """
    torch.set_num_threads(run.config.threads or 1)
    folder, device = store.folder / run.name, chosen_device(run.config.device)
    if not (folder / RECORD).exists() or read_record(folder / RECORD).end is None:
        replace(run, probed=run.probed and f"{run.name}/{EPOCHS}" not in store.committed).do(store, scale)
    task = load_data(run.config)
    net = prepared_model(run.config, task, device)
    net.load_state_dict(run_weights(folder)[1])
    return training_objective(net, task, device, images=images)


def gradient_plane(objective: ModelObjective, seed: int, eta: float) -> tuple[Direction, Direction]:
    """Return eta times the gradients of two random halves of the images, the second made orthogonal to the first."""
    halves = torch.randperm(objective.count, generator=torch.Generator().manual_seed(seed)).tensor_split(2)
    x, y = (value_and_gradient(objective.only(rows.sort().values), objective.parameters)[1] for rows in halves)
    across = orthogonal(y, x)
    length = float(norm_of(y.values())) / float(norm_of(across.values()))
    return {n: eta * g for n, g in x.items()}, {n: eta * length * g for n, g in across.items()}


def plane_around(
    objective: ModelObjective, points: int, pairs: int, eta: float | None = None, work: Path | None = None
) -> Landscape:
    """Return the loss on pairs of directions: random, or by ``eta`` times the gradients of two halves of the images.

    What is done is kept in the file ``work``, and gone on with.
    """
    theta, seeds = objective.parameters, range(pairs)
    if eta is None:
        directions = [analysis.random_plane(theta, seed=seed) for seed in seeds]
    else:
        directions = [gradient_plane(objective, seed, eta) for seed in seeds]
    axis = analysis.even_axis(REACH if eta is None else ADVERSARIAL_REACH, points)
    return analysis.landscape([(objective, pair) for pair in directions], theta, [axis, axis], path=work)


@dataclass(frozen=True)
class Flatness(Job):
    """The figures of one minimum."""

    run: Training

    def do(self, store: Store, scale: Scale) -> None:
        """Measure loss, R_S, eigenvalue, trace, and the mean rise on both kinds of planes."""
        objective = objective_of(store, scale, self.run, scale.images)
        theta = objective.parameters
        loss = float(objective(theta))
        found = {
            "loss": loss,
            "R_S": analysis.sharpness(objective, theta, rho=RHO),
            "eigenvalue": analysis.top_eigenvalues(objective, theta, k=1)[0],
            "trace": float(analysis.hessian_trace(objective, theta, vectors=scale.vectors)[0]),
            "rise": float(plane_around(objective, *scale.coarse).losses.mean()) - loss,
            "adversarial rise": float(plane_around(objective, *scale.coarse, self.run.config.lr).losses.mean()) - loss,
        }
        store.write(f"{self.name}.jsonl", [{"images": objective.count, **found}])


@dataclass(frozen=True)
class Plane(Job):
    """A fine plane around one minimum, for the picture."""

    run: Training
    adversarial: bool

    def do(self, store: Store, scale: Scale) -> None:
        """Measure the loss on the plane."""
        objective = objective_of(store, scale, self.run, scale.plane_images)
        points, pairs = scale.gradient_plane if self.adversarial else scale.plane
        work = store.folder / f"{self.name}.work.json"
        work.parent.mkdir(parents=True, exist_ok=True)
        found = plane_around(objective, points, pairs, self.run.config.lr if self.adversarial else None, work)
        losses = [[float(f"{value:.5g}") for value in row] for row in found.mean.tolist()]
        about = {"axis": list(found.axes[0]), "losses": losses, "pairs": pairs, "images": objective.count}
        store.write(f"{self.name}.jsonl", [about])
        work.unlink(missing_ok=True)


def renamed(run: Training, kind: str) -> str:
    """Return the name of a measurement at a run's minimum."""
    return run.name.replace("train/", f"{kind}/")


def jobs(scale: Scale) -> Sequence[Job]:
    """Return the planes of both pictures, of the first seed."""
    return [
        Plane(renamed(run, f"plane/{kind}"), run, kind == "adversarial")
        for kind, column in PICTURED.items()
        for run in trainings(scale, 1, [column], THREE)
    ]


def flatness_jobs(scale: Scale, seeds: int, columns: Sequence[Column] = CIFAR6) -> Sequence[Job]:
    """Return the figures of the minima of Table 1, or of other columns."""
    return [Flatness(renamed(run, "flatness"), run) for run in trainings(scale, seeds, columns, THREE)]


def figures(results: Results, column: Column, method: str, pick: Callable[[Line], float]) -> BySeed:
    """Return a figure of each seed's minimum."""
    runs = trainings(results.scale, results.scale.seeds, [column], [method])
    found = [results.store.lines(f"{renamed(run, 'flatness')}.jsonl") for run in runs]
    return {seed: pick(lines[0]) for seed, lines in enumerate(found) if lines}


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
            values = [list(map(_log, figures(results, column, method, itemgetter(n)).values())) for n in names]
            if n := len(values[0]):
                cells = [f"{math.exp(fmean(own)):.3g}" for own in values]
                rows.append((f"{results.title(column)}: {LABELS[method]}", *cells, str(n)))
    head = ("Minimum", "Training loss", "R_S", "Eigenvalue", "Trace", "Rise", "Adversarial rise", "n")
    return [Sheet("Flatness: geometric means over seeds; lower is flatter", head, tuple(rows))]


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the two planes: how far the loss rises from its value in the middle, with the same levels for all."""
    pictures = (
        ("figure4.png", "random", "Figure 4", "filter-normalised units"),
        ("appendix5.png", "adversarial", "Figure of A.5", "units of eta times the gradient"),
    )
    written: list[Path] = []
    for file, kind, words, unit in pictures:
        runs = trainings(results.scale, 1, [PICTURED[kind]], THREE)
        found = [results.store.lines(f"{renamed(run, f'plane/{kind}')}.jsonl") for run in runs]
        lines = [own[0] for own in found if own]
        if len(lines) == len(THREE):
            points, pairs, images = len(lines[0]["axis"]), lines[0]["pairs"], lines[0]["images"]
            about = f"{words}: {results.title(PICTURED[kind])}, seed 0: rise of the loss on {images} training images"
            grid = f"{points} x {points} points, mean of {pairs} pairs of directions, in {unit}"
            planes = {LABELS[method]: _rises(line) for method, line in zip(THREE, lines, strict=True)}
            written += contours(folder / file, planes, title=f"{about}\n{grid}")
    return written


def _rises(line: Line) -> Landscape:
    """Return how far the loss rises from the middle of a plane, at least a ten-thousandth of the most."""
    axis, losses = tuple(line["axis"]), torch.tensor(line["losses"], dtype=torch.float64)
    rises = losses - losses[len(axis) // 2, len(axis) // 2]
    return Landscape((axis, axis), rises.clamp(min=1e-4 * float(rises.max()))[None])


def _log(value: float) -> float:
    return math.log(max(value, LEAST))


def _flatter(method: str, what: str, columns: Sequence[Column]) -> Judge:
    """Return the judge that a figure of a method's minimum is below SGD's, in logarithms, paired by seed (rule 7)."""

    def judge(results: Results) -> Verdict:
        gaps = []
        for column in columns:
            base, ours = (figures(results, column, m, lambda line: _log(PICKS[what](line))) for m in ("base", method))
            gaps += [gap] if (gap := rules.minus(base, ours)) else []
        if (found := rules.over_tasks(gaps)) is None:
            return Verdict(rules.NOT_RUN, "no minima measured")
        ratio, low, high = (math.exp(-value) for value in (found.mean, found.high, found.low))
        words = f"{ratio:.2f} times SGD's ({low:.2f} to {high:.2f}; {len(gaps)} tasks, n = {found.n} seeds)"
        return rules.above(found, 0.0, words)

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
