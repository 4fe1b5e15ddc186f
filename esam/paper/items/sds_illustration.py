"""The illustration of SDS: mean loss of B+ and of B- along eps, from theta to beyond theta + eps.

Paper: a drawing. Here measured, halfway through the probed run of ResNet-18 (CPU scale: ResNet-8) on CIFAR-10.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import gt
from pathlib import Path

from esam.analysis.plot import Curve, curves
from esam.report.sheets import Sheet

from ..engine.inputs import Inputs
from ..engine.item import Item, Workload
from ..engine.observer import BatchProbe, Values
from ..engine.values import finite, mean_of, number, with_gaps
from ..scales import FOUR
from .probes import SET_COLOURS, probed_needs

SETS = {"B+": "plus", "B": "all", "B-": "minus"}


@dataclass(frozen=True)
class AlongFigures:
    """Mean losses along eps in the middle of the run, and how they rise in all its batches."""

    workload: Workload
    epoch: int
    ts: tuple[float, ...]
    losses: dict[str, Values]
    """Of each set, at theta + t eps."""
    batches: int
    plus_above_minus: int
    """Batches of the whole run in which B+ rises more than B- at every t above 0."""
    minus_falls: int
    """Batches in which the loss of B- falls to theta + eps."""


def analyse(inputs: Inputs) -> AlongFigures:
    """Return the mean losses along eps at the probe in the middle, and how often B+ rose most over all probes."""
    (runs,), ts = inputs.needs.probed, inputs.scale.probe.ts
    seen = inputs.observations(runs)
    middle = seen[len(seen) // 2]
    losses = {
        name: tuple(map(mean_of, zip(*(getattr(batch, own).along for batch in middle.batches), strict=True)))
        for name, own in SETS.items()
    }
    whole = [rises for one in seen for batch in one.batches if (rises := _rises(batch, ts))]
    at_eps = ts.index(1.0) - ts.index(0.0) - 1
    return AlongFigures(
        workload=runs.workload,
        epoch=middle.epoch,
        ts=ts,
        losses=losses,
        batches=len(whole),
        plus_above_minus=sum(all(map(gt, plus, minus)) for plus, minus in whole),
        minus_falls=sum(minus[at_eps] < 0 for _, minus in whole),
    )


def _rises(batch: BatchProbe, ts: tuple[float, ...]) -> list[list[float]]:
    """Return by how much the loss of B+ and B- has risen from theta at each t above 0; nothing if not all finite."""
    start, lines = ts.index(0.0), [finite(own.along) for own in (batch.plus, batch.minus)]
    whole = all(len(line) == len(ts) for line in lines)
    return [[value - line[start] for value in line[start + 1 :]] for line in lines] if whole else []


def sheets(measured: AlongFigures) -> list[Sheet]:
    """Return the losses along eps, and how often B+ rose most."""
    counts = {
        "B+ rises more than B- wherever measured": measured.plus_above_minus,
        "B- falls to theta + eps": measured.minus_falls,
    }
    held = tuple((name, f"{count} of {measured.batches}") for name, count in counts.items())
    losses = zip(measured.ts, *measured.losses.values(), strict=True)
    lines = tuple((f"{t:g}", *(number(value, 4) for value in cells)) for t, *cells in losses)
    title = f"Mean loss at theta + t eps, {measured.workload.title}, epoch {measured.epoch}"
    return [Sheet(title, ("t", *measured.losses), lines), Sheet("In how many batches", ("", "batches"), held)]


def draw(measured: AlongFigures, path: Path) -> list[Path]:
    """Draw the three losses along eps."""
    drawn = {name: Curve(measured.ts, with_gaps(values)) for name, values in measured.losses.items()}
    title, label = (
        f"{measured.workload.title}, epoch {measured.epoch}",
        "t, where theta + t eps: 0 is theta, 1 is theta + eps",
    )
    return curves(path, drawn, x_label=label, y_label="mean loss", title=title, colours=SET_COLOURS)


ITEM = Item(
    name="sds-illustration",
    number="Figure 2",
    title="Loss of B+ and B- along the perturbation",
    kind=AlongFigures,
    needs=lambda scale: probed_needs(scale, FOUR[:1]),
    analyse=analyse,
    sheets=sheets,
    draw=draw,
)
