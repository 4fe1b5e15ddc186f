"""The four losses over epochs: L on B+ and on B-, at theta and at theta + eps.

Paper: ResNet-18 and WRN-28-10 on both CIFARs, every epoch. CPU scale: ResNet-8 and WRN-10-1, every fourth epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from esam.report.sheets import Sheet

from ..engine.item import Item
from ..engine.observer import BatchProbe, Value
from ..engine.values import number
from ..scales import FOUR
from .probes import ProbedRun, ProbeFigures, draw_series, probe_figures, probed_needs

PICKS: dict[str, Callable[[BatchProbe], Value]] = {
    "B+ at theta + eps": lambda batch: batch.plus.perturbed_loss,
    "B- at theta + eps": lambda batch: batch.minus.perturbed_loss,
    "B+ at theta": lambda batch: batch.plus.loss,
    "B- at theta": lambda batch: batch.minus.loss,
    "B at theta + eps": lambda batch: batch.all.perturbed_loss,
    "B at theta": lambda batch: batch.all.loss,
    "rise of B+": lambda batch: batch.plus.rise,
    "rise of B": lambda batch: batch.all.rise,
    "rise of B-": lambda batch: batch.minus.rise,
}
STYLES = {
    "B+ at theta + eps": ("B+", "-"),
    "B- at theta + eps": ("B-", "-"),
    "B+ at theta": ("B+", "--"),
    "B- at theta": ("B-", "--"),
    "B at theta + eps": ("B", "-"),
    "B at theta": ("B", "--"),
}
"""The four losses, and those of the whole batch: set and dash of each."""
RISES, AT_THETA, AT_EPS = "R_B- <= R_B <= R_B+", "L_B- <= L_B+ at theta", "L_B <= L_B+ at theta + eps"
ASCENDING = {
    RISES: ("rise of B-", "rise of B", "rise of B+"),
    AT_THETA: ("B- at theta", "B+ at theta"),
    AT_EPS: ("B at theta + eps", "B+ at theta + eps"),
}
"""The paper's inequalities: figures in ascending order."""


def held(run: ProbedRun, inequality: str) -> tuple[int, int]:
    """Return in how many batches an inequality held, and in how many epochs by the means over their batches."""
    every = [run.series[name] for name in ASCENDING[inequality]]
    return _count(*(one.batches.values for one in every)), _count(*(one.by_epoch for one in every))


def _count(*columns: tuple[Value, ...] | list[Value]) -> int:
    def ascend(values: tuple[Value, ...]) -> bool:
        return all(a is not None and b is not None and a <= b + 1e-9 for a, b in pairwise(values))

    return sum(map(ascend, zip(*columns, strict=True)))


def sheets(measured: ProbeFigures) -> list[Sheet]:
    """Return the losses after the first, middle and last probed epoch, and how often the inequalities held."""
    lines, counts = [], []
    for run in measured.runs:
        epochs, batches = len(run.epochs), len(run.series["B+ at theta"].batches.values)
        for at in sorted({0, epochs // 2, epochs - 1}):
            cells = (number(run.series[name].by_epoch[at], 4) for name in STYLES)
            lines.append((f"{run.workload.title}, epoch {run.epochs[at]}", *cells))
        both = (held(run, inequality) for inequality in ASCENDING)
        counts.append((run.workload.title, *(f"{b} of {batches}; {e} of {epochs}" for b, e in both)))
    title = "In how many batches, and epochs by their means, inequalities held"
    return [
        Sheet("The four losses", ("Task, epoch", *STYLES), tuple(lines)),
        Sheet(title, ("Task", *ASCENDING), tuple(counts)),
    ]


ITEM = Item(
    name="four-losses",
    number="Figure of A.2",
    title="The losses of B+ and B-, at theta and at theta + eps, over epochs",
    kind=ProbeFigures,
    needs=lambda scale: probed_needs(scale, FOUR),
    analyse=lambda inputs: probe_figures(inputs, PICKS),
    sheets=sheets,
    draw=lambda measured, path: draw_series(measured, path, STYLES, y_label="mean loss"),
    notes=("Measured while ESAM trains, on training images without augmentation and in eval mode.",),
)
