"""A.7: the grid searches that tuned SGD, SAM and ESAM separately.

"The learning rate is chosen from {0.01, 0.05, 0.1, 0.2}, the weight decay from {5e-4, 1e-3}, and the batch size from
{64, 128, 256}." The paper prints its choice alone (ResNet-18: 0.05, 5e-4 or 1e-3, 128), and chose by test accuracy.
Ours are judged on held-out training images, 24 trials for each method, one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from esam.analysis.picture import write_picture
from esam.report.sheets import Sheet

from . import rules
from .hyperparameters import LABELS, PAPER, RESNET, THREE, Scale
from .jobs import Job, Training, training
from .results import Claim, Results
from .rules import Verdict
from .tables import COLOURS

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


def jobs(scale: Scale) -> list[Job]:
    """Return a run for each method and point."""
    return [trial(scale, method, point) for point in points(scale) for method in THREE]


def searched(results: Results, method: str) -> list[tuple[float, Point]]:
    """Return the held-out accuracy of each point that was run, in per cent, the best first."""
    ends = [(results.store.end(trial(results.scale, method, point).name), point) for point in points(results.scale)]
    found = [(100 * end["test_accuracy"]["last"], point) for end, point in ends if end is not None]
    return sorted(found, key=lambda one: -one[0])


def best_points(results: Results) -> dict[str, Point]:
    """Return each method's best point; nothing before every trial of every method has ended."""
    if not all(job.done(results.store) for job in jobs(results.scale)):
        return {}
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


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw held-out accuracy against the learning rate, a panel for each batch size, a dash for each weight decay."""
    found = {method: own for method in THREE if (own := searched(results, method))}
    if not found:
        return []
    grid = results.scale.grid

    def drawn(figure: Any) -> None:
        every = figure.subplots(1, len(grid["batch_size"]), squeeze=False, sharey=True)[0]
        for axes, size in zip(every, grid["batch_size"], strict=True):
            for method, decay in product(found, grid["weight_decay"]):
                here = [(p["lr"], a) for a, p in found[method] if (p["batch_size"], p["weight_decay"]) == (size, decay)]
                dash, label = "o-" if decay == grid["weight_decay"][0] else "o--", f"{LABELS[method]}, decay {decay:g}"
                if here:
                    axes.plot(*zip(*sorted(here), strict=True), dash, ms=4, color=COLOURS[method], label=label)
            axes.set_xscale("log")
            axes.set_xticks(grid["lr"], [f"{lr:g}" for lr in grid["lr"]])
            axes.minorticks_off()
            axes.set_title(f"batch {size:g}", loc="left")
            axes.set(xlabel="learning rate")
            axes.grid(True)
        every[0].set(ylabel="held-out accuracy, %")
        figure.legend(*every[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        title = f"A.7: {results.title(RESNET)}, {results.scale.grid_epochs} epochs, n = 1 seed a point"
        figure.suptitle(title, fontsize=9)

    return write_picture(folder / "appendix7.png", drawn, width=9.0, height=4.0)


def _papers_choice(results: Results) -> Verdict:
    """Judge that the paper's choice is among each method's best: within the margin of its best point."""
    verdicts = []
    for method in THREE:
        every = searched(results, method)
        for accuracy, point in every:
            if point == papers_point(method):
                off = every[0][0] - accuracy
                verdict = Verdict(rules.HOLDS, f"{LABELS[method]}: {off:.2f} points under the best of {len(every)}")
                verdicts.append(verdict if off <= rules.MARGIN else verdict.because("one seed a point"))
    return rules.worst(verdicts, "the grid has not been searched")


CLAIMS = (Claim("The paper's choice is the best of the grid", "0.05, 5e-4 / 1e-3, 128", _papers_choice),)
