"""The four losses over epochs: L on B+ and on B-, at theta and at theta + eps.

Paper: ResNet-18 and WRN-28-10 on both CIFARs, every epoch. CPU scale: ResNet-8 and WRN-10-1, every fourth epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Row, Values
from esam.reproduce.scale import Scale
from esam.reproduce.store import Found

from .common import mean_over, slug
from .inside import SET_COLOURS, batches_seen, observed_needs, with_gaps

Sets = Mapping[str, Mapping[str, float | None]]
"""Of the whole batch, B+ and B-: the loss, the loss at theta + eps, and the rise between them."""
SERIES = {
    "B+ at theta + eps": ("plus", "perturbed_loss"),
    "B- at theta + eps": ("minus", "perturbed_loss"),
    "B+ at theta": ("plus", "loss"),
    "B- at theta": ("minus", "loss"),
}


def needs(scale: Scale) -> Needs:
    """Return the observed runs."""
    return observed_needs(scale, scale.observed)


def analyse(found: Found) -> Values:
    """Return the four losses by epoch, and in how many batches and epochs each inequality of the paper held."""
    return {"tasks": {row.title: _losses(found, row) for row in found.needs.observed}}


def _losses(found: Found, row: Row) -> Values:
    seen = list(batches_seen(found, row, "selection"))
    epochs = sorted({epoch for epoch, _ in seen})
    series = {
        name: [mean_over(one[which][what] for at, one in seen if at == epoch) for epoch in epochs]
        for name, (which, what) in SERIES.items()
    }
    means = [_mean([one for at, one in seen if at == epoch]) for epoch in epochs]
    return {
        "epochs": epochs,
        "series": series,
        "batches": len(seen),
        "held": {name: sum(holds(one) for _, one in seen) for name, holds in INEQUALITIES.items()},
        "held in epochs": {name: sum(map(holds, means)) for name, holds in INEQUALITIES.items()},
    }


def _mean(batches: list[Sets]) -> Sets:
    """Return the mean over batches of every figure of every set."""
    whats = ("loss", "perturbed_loss", "rise")
    return {
        which: {w: mean_over(one[which][w] for one in batches) for w in whats} for which in ("all", "plus", "minus")
    }


def _rises(one: Sets) -> bool:
    rises = [one[which]["rise"] for which in ("minus", "all", "plus")]
    return _at_most(rises[0], rises[1]) and _at_most(rises[1], rises[2])


def _at_most(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and low <= high + 1e-9


INEQUALITIES: dict[str, Callable[[Sets], bool]] = {
    "R_B- <= R_B <= R_B+": _rises,
    "L_B- <= L_B+ at theta": lambda one: _at_most(one["minus"]["loss"], one["plus"]["loss"]),
    "L_B <= L_B+ at theta + eps": lambda one: _at_most(one["all"]["perturbed_loss"], one["plus"]["perturbed_loss"]),
}


def sheets(measured: Values) -> list[Sheet]:
    """Return the losses at the first, middle and last look, and how often the inequalities held."""
    lines, held = [], []
    for task, own in measured["tasks"].items():
        for at in sorted({0, len(own["epochs"]) // 2, len(own["epochs"]) - 1}):
            cells = ("–" if own["series"][name][at] is None else f"{own['series'][name][at]:.4f}" for name in SERIES)
            lines.append((f"{task}, epoch {own['epochs'][at]}", *cells))
        every = own["batches"], len(own["epochs"])
        counts = zip(own["held"].values(), own["held in epochs"].values(), strict=True)
        held.append((task, *(f"{n} of {every[0]}; {epochs} of {every[1]}" for n, epochs in counts)))
    return [
        Sheet("The four losses", ("Task, epoch", *SERIES), tuple(lines)),
        Sheet(
            "In how many batches, and epochs by their means, inequalities held", ("Task", *INEQUALITIES), tuple(held)
        ),
    ]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw the four losses against epochs, one figure for each task."""
    from esam.analysis.plot import Curve, curves

    written = []
    colours = {name: SET_COLOURS[name.split()[0]] for name in SERIES}
    for task, own in measured["tasks"].items():
        drawn = {
            name: Curve(own["epochs"], with_gaps(values), dash="-" if "eps" in name else "--")
            for name, values in own["series"].items()
        }
        where = path.with_name(f"{path.name}-{slug(task)}")
        written += curves(where, drawn, x_label="epoch", y_label="mean loss", title=task, colours=colours)
    return written


ITEM = Item(
    name="four-losses",
    number="Figure of A.2",
    title="The losses of B+ and B-, at theta and at theta + eps, over epochs",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper={"statement": "L_B- <= L_B+ and, at theta + eps, L_B <= L_B+ for every training epoch"},
    notes=("Measured while ESAM trains, on training images without augmentation and in eval mode.",),
)
