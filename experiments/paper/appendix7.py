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
from .jobs import Job, training
from .results import Claim, Results
from .rules import Verdict
from .tables import COLOURS

NUMBER, TITLE = "A.7", "The printed grids, for each method separately"
SEED = 100
"""Of the search: no other run has it."""


def points(scale: Scale) -> list[dict[str, Any]]:
    """Return the points of the grid."""
    return [dict(zip(scale.grid, values, strict=True)) for values in product(*scale.grid.values())]


def jobs(scale: Scale) -> list[Job]:
    """Return a run for each method and point."""
    return [
        training(
            scale,
            RESNET,
            method,
            SEED,
            held_out=True,
            epochs=scale.grid_epochs,
            evaluate_every=scale.grid_epochs,
            **point,
        )
        for point in points(scale)
        for method in THREE
    ]


def searched(results: Results, method: str) -> list[tuple[float, dict[str, Any]]]:
    """Return the held-out accuracy of each point that was run, in per cent, the best first."""
    scale, found = results.scale, []
    for point in points(scale):
        run = training(
            scale,
            RESNET,
            method,
            SEED,
            held_out=True,
            epochs=scale.grid_epochs,
            evaluate_every=scale.grid_epochs,
            **point,
        )
        if (end := results.store.end(run.name)) is not None:
            found.append((100 * end["test_accuracy"]["last"], point))
    return sorted(found, key=lambda one: -one[0])


def best_points(results: Results) -> dict[str, dict[str, Any]]:
    """Return each method's best point; nothing before all methods have all points."""
    found = {method: searched(results, method) for method in THREE}
    whole = all(len(own) == len(points(results.scale)) for own in found.values())
    return {method: own[0][1] for method, own in found.items()} if whole else {}


def tables(results: Results) -> Sequence[Sheet]:
    """Return each method's three best points, and the paper's choice."""
    rows = []
    for method in THREE:
        row = PAPER[RESNET]
        decay = row.decay_sgd if method == "base" else row.decay
        paper = {"lr": row.lr, "weight_decay": decay, "batch_size": row.batch}
        every = searched(results, method)
        for place, (accuracy, point) in enumerate(every, 1):
            if place <= 3 or point == paper:
                told = ", ".join(f"{value:g}" for value in point.values()) + (
                    " (the paper's)" if point == paper else ""
                )
                rows.append((LABELS[method], f"{place} of {len(every)}", told, f"{accuracy:.2f}"))
    head = ("Method", "Place", "learning rate, weight decay, batch", "Held-out accuracy, %")
    return [Sheet("A.7: the best of each method's search, one seed", head, tuple(rows))]


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw held-out accuracy against the learning rate, a panel for each batch size, a dash for each weight decay."""
    found = {method: own for method in THREE if (own := searched(results, method))}
    if not found:
        return []
    sizes, decays = results.scale.grid["batch_size"], results.scale.grid["weight_decay"]

    def drawn(figure: Any) -> None:
        every = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
        for axes, size in zip(every, sizes, strict=True):
            for method, own in found.items():
                for decay, dash in zip(decays, ("-", "--"), strict=False):
                    here = sorted(
                        (p["lr"], a) for a, p in own if p["batch_size"] == size and p["weight_decay"] == decay
                    )
                    label = f"{LABELS[method]}, weight decay {decay:g}"
                    axes.plot(
                        [x for x, _ in here], [y for _, y in here], f"o{dash}", ms=4, color=COLOURS[method], label=label
                    )
            axes.set_xscale("log")
            axes.set_xticks(results.scale.grid["lr"], [f"{lr:g}" for lr in results.scale.grid["lr"]])
            axes.minorticks_off()
            axes.set_title(f"batch {size:g}", loc="left")
            axes.set(xlabel="learning rate")
            axes.grid(True)
        every[0].set(ylabel="held-out accuracy, %")
        handles, labels = every[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
        figure.suptitle(
            f"A.7: {results.title(RESNET)}, {results.scale.grid_epochs} epochs, n = 1 seed a point", fontsize=9
        )

    return write_picture(folder / "appendix7.png", drawn, width=9.0, height=4.0)


def _papers_choice(results: Results) -> Verdict:
    """Judge that the paper's choice is among each method's best: within the margin of its best point."""
    verdicts, row = [], PAPER[RESNET]
    for method in THREE:
        decay = row.decay_sgd if method == "base" else row.decay
        every = searched(results, method)
        own = [a for a, p in every if (p["lr"], p["weight_decay"], p["batch_size"]) == (row.lr, decay, row.batch)]
        if own and len(every) > 1:
            off = every[0][0] - own[0]
            words = f"{LABELS[method]}: {off:.2f} points under the best of {len(every)}"
            verdicts.append(
                Verdict(
                    rules.HOLDS if off <= rules.MARGIN else rules.INCONCLUSIVE,
                    words,
                    "" if off <= rules.MARGIN else "one seed a point",
                )
            )
    return rules.worst(verdicts) if verdicts else Verdict(rules.NOT_RUN, "the grid has not been searched")


CLAIMS = (Claim("The paper's choice is the best of the grid", "0.05, 5e-4 / 1e-3, 128", _papers_choice),)
