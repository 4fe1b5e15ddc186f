"""The grid search of the appendix: learning rate, weight decay and batch size, tuned for each method separately.

Paper: learning rate .01 to .2, weight decay 5e-4 and 1e-3, batch 64 to 256; it prints the choice alone (Table of A.7).
CPU scale: the same grid with ResNet-8 on 2,500 images of CIFAR-10, 6 epochs, judged on held-out images.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from esam.compare.plan import Comparison
from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Row, Values
from esam.reproduce.scale import Scale
from esam.reproduce.store import Found

from .common import THREE, rows_of

Point = tuple[float, float, int]
"""Learning rate, weight decay, batch size."""

PAPER: dict[str, Any] = {
    "learning rates": [0.01, 0.05, 0.1, 0.2],
    "weight decays": [5e-4, 1e-3],
    "batch sizes": [64, 128, 256],
    "chosen for ResNet-18": {
        "SGD": {"lr": 0.05, "weight_decay": 5e-4, "batch_size": 128},
        "SAM": {"lr": 0.05, "weight_decay": 1e-3, "batch_size": 128},
        "ESAM": {"lr": 0.05, "weight_decay": 1e-3, "batch_size": 128},
    },
}


def needs(scale: Scale) -> Needs:
    """Return a run for each method and point of the grid."""
    rows = [row for point in _grid(scale) for row in _rows(scale.search.start, point)]
    search = scale.search
    sizes = {
        "learning rate": ", ".join(f"{v:g}" for v in search.lrs),
        "weight decay": ", ".join(f"{v:g}" for v in search.weight_decays),
        "batch size": ", ".join(map(str, search.batch_sizes)),
    }
    return Needs(rows=tuple(rows), sizes=sizes)


def _grid(scale: Scale) -> list[Point]:
    search = scale.search
    return [(lr, decay, size) for lr in search.lrs for decay in search.weight_decays for size in search.batch_sizes]


def _rows(start: Comparison, point: Point) -> tuple[Row, ...]:
    lr, weight_decay, batch_size = point
    config = dataclasses.replace(start.config, lr=lr, weight_decay=weight_decay, batch_size=batch_size)
    own = {m: {k: v for k, v in given.items() if k != "weight_decay"} for m, given in start.settings.items()}
    rows = rows_of(("", ""), dataclasses.replace(start, config=config, settings=own), THREE)
    return tuple(dataclasses.replace(row, task=_name(point)) for row in rows)


def analyse(found: Found) -> Values:
    """Return the held-out accuracy at every point, and each method's best."""
    methods: dict[str, list[dict[str, Any]]] = {}
    for row in found.needs.rows:
        config, accuracies = row.comparison.config, []
        for record in found.records(row):
            assert record.end is not None
            accuracies.append(record.end["test_accuracy"]["last"])
        point = {"lr": config.lr, "weight_decay": config.weight_decay, "batch_size": config.batch_size}
        known = [100 * a for a in accuracies if a is not None]
        methods.setdefault(row.label, []).append({**point, "accuracy": sum(known) / len(known), "n": len(known)})
    best = {label: max(points, key=lambda point: point["accuracy"]) for label, points in methods.items()}
    return {"methods": methods, "best": best}


def sheets(measured: Values) -> list[Sheet]:
    """Return the best point of each method beside the paper's, and the whole grid."""
    chosen = []
    for label, best in measured["best"].items():
        theirs = PAPER["chosen for ResNet-18"][label]
        cells = (str(v) for key in ("lr", "weight_decay", "batch_size") for v in (best[key], theirs[key]))
        chosen.append((label, *cells, f"{best['accuracy']:.2f}"))
    head = ("Method", "Learning rate", "paper", "Weight decay", "paper", "Batch", "paper", "Held-out accuracy, %")
    labels = list(measured["methods"])
    lines = []
    for points in zip(*measured["methods"].values(), strict=True):
        point = points[0]
        name = _name((point["lr"], point["weight_decay"], point["batch_size"]))
        lines.append((name, *(f"{one['accuracy']:.2f}" for one in points)))
    return [
        Sheet("The best of each method's own search", head, tuple(chosen)),
        Sheet("Held-out accuracy, %", ("Learning rate, weight decay, batch size", *labels), tuple(lines)),
    ]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw the best accuracy at each learning rate."""
    from esam.analysis.plot import Curve, curves

    drawn = {}
    for label, points in measured["methods"].items():
        lrs = sorted({point["lr"] for point in points})
        drawn[label] = Curve(lrs, [max(p["accuracy"] for p in points if p["lr"] == lr) for lr in lrs])
    title = "Best over weight decays and batch sizes"
    return curves(path, drawn, x_label="learning rate", y_label="held-out accuracy, %", title=title)


def _name(point: Point) -> str:
    return f"{point[0]:g}, {point[1]:g}, {point[2]}"


ITEM = Item(
    name="grid-search",
    number="Grid of A.7",
    title="Grid search of learning rate, weight decay and batch size",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper=PAPER,
    notes=("The paper tunes on the test accuracy; here a fifth of the training images, held out, decides.",),
)
