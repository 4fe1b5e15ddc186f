"""A.7: the grid searches that tuned SGD, SAM and ESAM separately.

"The learning rate is chosen from {0.01, 0.05, 0.1, 0.2}, the weight decay from {5e-4, 1e-3}, and the batch size from
{64, 128, 256}." The paper prints its choice alone (ResNet-18: 0.05, 5e-4 or 1e-3, 128), and chose by test accuracy.
Ours are judged on held-out training images, 24 trials for each method, one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from esam.report.sheets import Sheet

from . import rules
from .hyperparameters import LABELS, PAPER, RESNET, THREE, Scale
from .jobs import Job, Training, training
from .results import Claim, Results, on_each
from .rules import Verdict

NUMBER, TITLE = "A.7", "The printed grids, for each method separately"
SEED = 100
"""Of the search: no other run has it."""
Point = dict[str, Any]


def points(scale: Scale) -> list[Point]:
    """Return the points of the grid."""
    return [dict(zip(scale.grid, values, strict=True)) for values in product(*scale.grid.values())]


def trial(scale: Scale, method: str, point: Point) -> Training:
    """Return the run that tries a point."""
    epochs = {"epochs": scale.grid_epochs, "evaluate_every": scale.grid_epochs}
    return training(scale, RESNET, method, SEED, held_out=True, **epochs, **point)


def jobs(scale: Scale) -> Sequence[Job]:
    """Return a run for each method and point."""
    return [trial(scale, method, point) for point in points(scale) for method in THREE]


def searched(results: Results, method: str) -> list[tuple[float, Point]]:
    """Return the held-out accuracy of each point that was run, in per cent, the best first."""
    ends = [(results.store.end(trial(results.scale, method, point).name), point) for point in points(results.scale)]
    found = [(100 * end["test_accuracy"]["last"], point) for end, point in ends if end is not None]
    return sorted(found, key=lambda one: -one[0])


def best_points(results: Results) -> dict[str, Point] | None:
    """Return each method's best point; None before every trial of every method has ended."""
    if not all(job.done(results.store) for job in jobs(results.scale)):
        return None
    return {method: searched(results, method)[0][1] for method in THREE}


def papers_point(method: str) -> Point:
    """Return the paper's choice."""
    row = PAPER[RESNET]
    decay = row.decay_sgd if method == "base" else row.decay
    return {"lr": row.lr, "weight_decay": decay, "batch_size": row.batch}


def tables(results: Results) -> Sequence[Sheet]:
    """Return the three best points, and the paper's choice."""
    rows = []
    for method in THREE:
        every = searched(results, method)
        for place, (accuracy, point) in enumerate(every, 1):
            chosen = point == papers_point(method)
            if place <= 3 or chosen:
                words = ", ".join(f"{value:g}" for value in point.values()) + (" (the paper's)" if chosen else "")
                rows.append((LABELS[method], f"{place} of {len(every)}", words, f"{accuracy:.2f}"))
    head = ("Method", "Rank", "learning rate, weight decay, batch", "Held-out accuracy, %")
    return [Sheet("A.7: the best of each method's search, one seed", head, tuple(rows))]


def _papers_choice(results: Results, method: str) -> Verdict | None:
    """Judge that the paper's choice is among a method's best: within the margin of its best point."""
    every = searched(results, method)
    chosen = [accuracy for accuracy, point in every if point == papers_point(method)]
    if not chosen:
        return None
    off = every[0][0] - chosen[0]
    verdict = Verdict(rules.HOLDS, f"{LABELS[method]}: {off:.2f} points under the best of {len(every)}")
    return verdict if off <= rules.MARGIN else verdict.because("one seed a point")


JUDGE = on_each(THREE, _papers_choice, "the grid has not been searched")
CLAIMS = (Claim("The paper's choice is the best of the grid", "0.05, 5e-4 / 1e-3, 128", JUDGE),)
