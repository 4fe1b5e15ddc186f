"""Cosine similarity of the gradients of B+, B- and B_rand to that of the whole batch, over epochs.

Paper: ResNet-18 and WRN-28-10 on both CIFARs. CPU scale: the runs that the four losses are taken from.
"""

from __future__ import annotations

from esam.report.sheets import Sheet

from ..engine.item import Item
from ..scales import FOUR
from .probes import ProbedRun, ProbeFigures, draw_series, probe_figures, probed_needs

PICKS = {"B+": lambda batch: batch.plus.cosine, "B-": lambda batch: batch.minus.cosine}
PICKS["B_rand"] = lambda batch: batch.random.cosine


def leads(run: ProbedRun, other: str) -> list[float]:
    """Return by how much the cosine of B+ is above that of another set, in every batch."""
    pairs = zip(run.series["B+"].batches.values, run.series[other].batches.values, strict=True)
    return [a - b for a, b in pairs if a is not None and b is not None]


def sheets(measured: ProbeFigures) -> list[Sheet]:
    """Return the mean cosines and how often B+ was above the others."""
    lines = []
    for run in measured.runs:
        gaps = [leads(run, other) for other in ("B-", "B_rand")]
        above = (f"{sum(gap > 0 for gap in every)} of {len(every)}" for every in gaps)
        lines.append((run.workload.title, *(run.series[name].batches.words(3) for name in PICKS), *above))
    head = ("Task", *PICKS, "B+ above B-", "B+ above B_rand")
    return [Sheet("Cosine to the gradient of the whole batch, over all probed epochs", head, tuple(lines))]


ITEM = Item(
    name="cosines",
    number="Second figure of A.2",
    title="How near the gradients of B+, B- and a random half are to the batch's",
    kind=ProbeFigures,
    needs=lambda scale: probed_needs(scale, FOUR),
    analyse=lambda inputs: probe_figures(inputs, PICKS),
    sheets=sheets,
    draw=lambda measured, path: draw_series(
        measured, path, {name: (name, "-") for name in PICKS}, y_label="cosine to the gradient of B"
    ),
    notes=("Gradients at theta + eps, while ESAM trains, in eval mode; the random half is drawn anew for each batch.",),
)
