"""Cosine similarity of the gradients of B+, B- and B_rand to that of the whole batch, over epochs.

Paper: ResNet-18 and WRN-28-10 on both CIFARs. CPU scale: the runs that the four losses are taken from.
"""

from __future__ import annotations

from pathlib import Path

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Row, Values
from esam.reproduce.scale import Scale
from esam.reproduce.store import Found

from .common import mean_over, slug, spread, told
from .inside import SET_COLOURS, batches_seen, observed_needs, with_gaps

SETS = {"B+": "plus", "B-": "minus", "B_rand": "random"}


def needs(scale: Scale) -> Needs:
    """Return the observed runs."""
    return observed_needs(scale, scale.observed)


def analyse(found: Found) -> Values:
    """Return the cosines by epoch, and in how many batches B+ was the nearest to B."""
    return {"tasks": {row.title: _cosines(found, row) for row in found.needs.observed}}


def _cosines(found: Found, row: Row) -> Values:
    seen = list(batches_seen(found, row, "cosines"))
    epochs = sorted({epoch for epoch, _ in seen})
    whole = [one for _, one in seen if None not in one.values()]
    return {
        "epochs": epochs,
        "series": {
            name: [mean_over(one[key] for at, one in seen if at == epoch) for epoch in epochs]
            for name, key in SETS.items()
        },
        "overall": {name: spread([one[key] for _, one in seen]) for name, key in SETS.items()},
        "batches": len(whole),
        "held": {
            "B+ above B-": sum(one["plus"] > one["minus"] for one in whole),
            "B+ above B_rand": sum(one["plus"] > one["random"] for one in whole),
        },
    }


def sheets(measured: Values) -> list[Sheet]:
    """Return the mean cosines and how often B+ was above the others."""
    lines = []
    for task, own in measured["tasks"].items():
        cells = tuple(told(own["overall"][name], 3) for name in SETS)
        lines.append((task, *cells, *(f"{count} of {own['batches']}" for count in own["held"].values())))
    head = ("Task", *SETS, "B+ above B-", "B+ above B_rand")
    return [Sheet("Cosine to the gradient of the whole batch, over all epochs looked at", head, tuple(lines))]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw the cosines against epochs, one figure for each task."""
    from esam.analysis.plot import Curve, curves

    written = []
    for task, own in measured["tasks"].items():
        drawn = {name: Curve(own["epochs"], with_gaps(values)) for name, values in own["series"].items()}
        where = path.with_name(f"{path.name}-{slug(task)}")
        label = "cosine to the gradient of B"
        written += curves(where, drawn, x_label="epoch", y_label=label, title=task, colours=SET_COLOURS)
    return written


ITEM = Item(
    name="cosines",
    number="Second figure of A.2",
    title="How near the gradients of B+, B- and a random half are to the batch's",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper={"statement": "B+ has the highest cosine similarities with B than B- and the random set"},
    notes=("Gradients at theta + eps, while ESAM trains, in eval mode; the random half is drawn anew for each batch.",),
)
