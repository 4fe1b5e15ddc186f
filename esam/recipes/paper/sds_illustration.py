"""The illustration of SDS: mean loss of B+ and of B- along eps, from theta to beyond theta + eps.

Paper: a drawing. Here measured, halfway through the observed run of ResNet-18 (CPU scale: ResNet-8) on CIFAR-10.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Values
from esam.reproduce.scale import Scale
from esam.reproduce.store import Found

from .common import mean_over
from .inside import SET_COLOURS, batches_seen, observed_needs, with_gaps

NAMES = {"plus": "B+", "all": "B", "minus": "B-"}


def needs(scale: Scale) -> Needs:
    """Return the observed run of the paper's task."""
    return observed_needs(scale, scale.observed[:1])


def analyse(found: Found) -> Values:
    """Return the mean losses along eps at the look in the middle, and how often B+ rose most over all looks."""
    row = found.needs.observed[0]
    seen = list(batches_seen(found, row, "along"))
    epochs = sorted({epoch for epoch, _ in seen})
    middle = epochs[len(epochs) // 2]
    ts = list(found.scale.look.ts)
    curves = {
        which: [mean_over(one[which][i] for at, one in seen if at == middle) for i in range(len(ts))] for which in NAMES
    }
    rises = [_rises(one, ts) for _, one in seen]
    whole = [one for one in rises if all(map(math.isfinite, (*one["plus"], *one["minus"], *one["all"])))]
    at_eps = ts.index(1.0) - ts.index(0.0) - 1
    return {
        "task": row.title,
        "epoch": middle,
        "ts": ts,
        "curves": curves,
        "batches": len(whole),
        "held": {
            "B+ rises more than B- to theta + eps (by construction)": sum(
                one["plus"][at_eps] > one["minus"][at_eps] for one in whole
            ),
            "B+ rises more than B- wherever looked": sum(_above(one["plus"], one["minus"]) for one in whole),
            "B+ rises more than B wherever looked": sum(_above(one["plus"], one["all"]) for one in whole),
            "B- falls to theta + eps": sum(one["minus"][at_eps] < 0 for one in whole),
        },
    }


def _rises(one: Mapping[str, Sequence[float | None]], ts: Sequence[float]) -> dict[str, list[float]]:
    """Return by how much the loss of each set has risen from theta at each t above 0."""
    start = ts.index(0.0)
    drawn = {which: with_gaps(one[which]) for which in NAMES}
    return {which: [value - curve[start] for value in curve[start + 1 :]] for which, curve in drawn.items()}


def _above(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a > b for a, b in zip(one, other, strict=True))


def sheets(measured: Values) -> list[Sheet]:
    """Return the losses along eps, and how often B+ rose most."""
    lines = []
    for i, t in enumerate(measured["ts"]):
        cells = (measured["curves"][which][i] for which in NAMES)
        lines.append((f"{t:g}", *("–" if value is None else f"{value:.4f}" for value in cells)))
    held = tuple((name, f"{count} of {measured['batches']}") for name, count in measured["held"].items())
    title = f"Mean loss at theta + t eps, {measured['task']}, epoch {measured['epoch']}"
    return [
        Sheet(title, ("t", *NAMES.values()), tuple(lines)),
        Sheet("In how many batches", ("", "batches"), held),
    ]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw the three losses along eps."""
    from esam.analysis.plot import Curve, curves

    drawn = {name: Curve(measured["ts"], with_gaps(measured["curves"][which])) for which, name in NAMES.items()}
    title = f"{measured['task']}, epoch {measured['epoch']}"
    label = "t, where theta + t eps: 0 is theta, 1 is theta + eps"
    return curves(path, drawn, x_label=label, y_label="mean loss", title=title, colours=SET_COLOURS)


ITEM = Item(
    name="sds-illustration",
    number="Figure 2",
    title="Loss of B+ and B- along the perturbation",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper={"statement": "the average loss of samples in B+ increases the most along the perturbation direction"},
)
