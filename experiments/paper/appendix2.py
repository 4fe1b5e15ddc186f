"""A.2 and Figure 2: is B+ representative, and do its losses bound those of the batch?

"Equations 8 and 10 hold for every training epoch"; "B+ has the highest cosine similarities with B than B- and the
random set". Losses come from the step itself, in every step of ESAM's training; cosines from probes. The runs are
Table 1's own runs of ESAM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from esam.analysis.picture import write_picture

from . import probe, rules
from .hyperparameters import CIFAR4, RESNET, Column
from .jobs import Training, trainings
from .results import Claim, Judge, Results, on_each
from .rules import Verdict
from .store import EPOCHS, RECORD, Line

NUMBER, TITLE = "Figure 2, figures of A.2", "Losses and gradients of B+, B- and a random half"
COLOURS = {"B+": "#c4273a", "B-": "#0d8f58", "B": "#39424d", "random": "#8a949e"}
Pick = Callable[[Line], Sequence[float]]
"""What is taken out of an epoch's line: a value a batch, none where it was not probed."""


def runs_of(results: Results, column: Column) -> list[Training]:
    """Return the probed runs of a column that are finished."""
    runs = trainings(results.scale, results.scale.few, [column], ["esam"])
    return [run for run in runs if results.store.end(run.name) is not None]


def epochs(results: Results, column: Column) -> list[list[Line]]:
    """Return what was seen in every epoch, for each probed run."""
    return [results.store.lines(f"{run.name}/{EPOCHS}") or [] for run in runs_of(results, column)]


def fitted_from(results: Results, column: Column) -> int | None:
    """Return the first epoch after which the training accuracy of every probed run stays at 99 % or more.

    None where some run did not record it in every epoch.
    """
    records = [results.store.lines(f"{run.name}/{RECORD}") or [] for run in runs_of(results, column)]
    lines = [line for record in records for line in record if line["kind"] == "epoch"]
    if any(line.get("train_accuracy") is None for line in lines):
        return None
    return 1 + max((line["epoch"] for line in lines if line["train_accuracy"] < rules.FITTED / 100), default=0)


def batches(results: Results, column: Column, pick: Pick) -> list[list[float]]:
    """Return what all probed batches came to, for each run."""
    found = [[value for line in lines for value in pick(line)] for lines in epochs(results, column)]
    return [values for values in found if values]


def named(name: str) -> Pick:
    """Return what picks a figure."""
    return lambda line: line.get(name, [])


def gap(high: Pick, low: Pick) -> Pick:
    """Return what picks the difference of two figures."""
    return lambda line: [a - b for a, b in zip(high(line), low(line), strict=True)]


def rise(name: str, to: str, start: str) -> Pick:
    """Return what picks how much a set's loss rises between two points."""
    return gap(named(f"{name} at {to}"), named(f"{name} at {start}"))


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the four losses and the cosines over epochs, and the losses along eps (Figure 2)."""
    columns = [column for column in CIFAR4 if epochs(results, column)]
    if not columns:
        return []

    def losses(figure: Any) -> None:
        grid = figure.subplots(2, len(columns), squeeze=False, sharex=True)
        for (top, bottom), column in zip(grid.T, columns, strict=True):
            runs = epochs(results, column)
            for name in ("B+ at eps", "B at eps", "B- at eps", "B+ at theta", "B- at theta"):
                _curve(top, runs, name, COLOURS[name.split()[0]], "-" if name.endswith("eps") else "--")
            for name in ("B+", "random", "B-"):
                _curve(bottom, runs, f"cosine {name}", COLOURS[name], "-")
            top.set_yscale("log")
            top.set_title(f"{results.title(column)}, n = {len(runs)}", loc="left", fontsize=8)
            bottom.set(xlabel="epoch")
            if (fitted := fitted_from(results, column)) is not None:
                top.axvline(fitted, color="#b0b8c0", linewidth=1, zorder=0, label="images fitted")
        grid[0][0].set(ylabel="mean loss in the step")
        grid[1][0].set(ylabel="cosine to the batch's gradient")
        curves = [pair for row in grid for pair in zip(*row[0].get_legend_handles_labels(), strict=True)]
        figure.legend(*zip(*curves, strict=True), loc="outside lower center", ncols=4, fontsize=8)
        title = "A.2: ESAM's training, means of the epoch over n runs; bands: their deviation; eps: at theta + eps"
        figure.suptitle(title, fontsize=9)

    def along(figure: Any) -> None:
        axes, runs = figure.subplots(), epochs(results, RESNET)
        for name in ("B+", "B-"):
            rises = [[v for run in runs for line in run for v in rise(name, f"{t:g}", "0")(line)] for t in probe.TS]
            _banded(axes, probe.TS, rises, COLOURS[name], "o-", name)
        axes.set(xlabel="t: weights are theta + t eps, rho = 0.05", ylabel="rise of the mean loss from theta")
        title = f"Figure 2: {results.title(RESNET)}, n = {len(rises[0])} batches; bands: deviation"
        axes.set_title(title, loc="left", fontsize=9)
        axes.grid(True)
        axes.legend()

    written = write_picture(folder / "appendix2.png", losses, width=2.3 * max(2, len(columns)), height=5.0)
    return written + (write_picture(folder / "figure2.png", along, width=6.0, height=4.0) if RESNET in columns else [])


def _curve(axes: Any, runs: Sequence[Sequence[Line]], name: str, colour: str, dash: str) -> None:
    means = [{line["epoch"]: fmean(line[name]) for line in lines if line.get(name)} for lines in runs]
    at = sorted(set.intersection(*(set(own) for own in means)))
    _banded(axes, at, [[own[epoch] for own in means] for epoch in at], colour, dash, name)


def _banded(
    axes: Any, at: Sequence[float], values: Sequence[Sequence[float]], colour: str, dash: str, name: str
) -> None:
    """Draw means, with a band of their deviation."""
    means, off = [fmean(v) for v in values], [stdev(v) if len(v) > 1 else 0.0 for v in values]
    axes.plot(at, means, dash, color=colour, linewidth=1.2, label=name)
    low, high = ([m + sign * d for m, d in zip(means, off, strict=True)] for sign in (-1, 1))
    axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def _every_epoch(high: str, low: str) -> Judge:
    def judge(results: Results, column: Column) -> Verdict | None:
        pick = gap(named(high), named(low))
        together = zip(*epochs(results, column), strict=False)
        found = [values for lines in together if (values := [v for line in lines for v in pick(line)])]
        return rules.every_epoch(found, fitted_from(results, column)).on(results.title(column)) if found else None

    return on_each(CIFAR4, judge, "no probed runs")


def _rises(results: Results) -> Verdict:
    """Judge R_B- <= R_B <= R_B+ in every batch: it follows from how B+ is chosen."""
    lines = [line for column in CIFAR4 for run in epochs(results, column) for line in run]
    sets = [[value for line in lines for value in rise(name, "eps", "theta")(line)] for name in ("B-", "B", "B+")]
    if not sets[0]:
        return Verdict(rules.NOT_RUN, "no probed runs")
    # five decimals are kept of each loss, so a rise is known to 2e-5
    held = sum(low - 2e-5 <= middle <= high + 2e-5 for low, middle, high in zip(*sets, strict=True))
    verdict = rules.HOLDS if held == len(sets[0]) else rules.CONTRADICTED
    return Verdict(verdict, f"{held:,} of {len(sets[0]):,} steps")


def _over_seeds(pick: Pick, columns: Sequence[Column] = CIFAR4) -> Judge:
    """Return the judge that a mean over batches is above zero, over seeds, on every task."""

    def judge(results: Results, column: Column) -> Verdict | None:
        values = batches(results, column, pick)
        if not values:
            return None
        found = rules.interval(list(map(fmean, values)))
        return rules.above(found, 0.0, f"{results.title(column)} {found.words(3)} (n = {found.n} runs)")

    return on_each(columns, judge, "no probed runs")


NEARER_THAN_REST = gap(named("cosine B+"), named("cosine B-"))
NEARER_THAN_RANDOM = gap(named("cosine B+"), named("cosine random"))
RISES_MORE = gap(rise("B+", "1", "0"), rise("B-", "1", "0"))
CLAIMS = (
    Claim("R_B- <= R_B <= R_B+", "by construction", _rises),
    Claim("L_B- <= L_B+ at theta", "in every epoch", _every_epoch("B+ at theta", "B- at theta")),
    Claim("L_B <= L_B+ at theta + eps", "in every epoch", _every_epoch("B+ at eps", "B at eps")),
    Claim("B+ is nearer to B than B-", "much higher cosine", _over_seeds(NEARER_THAN_REST)),
    Claim("B+ is nearer to B than a random half", "much higher cosine", _over_seeds(NEARER_THAN_RANDOM)),
    Claim("A sample's rise goes with its loss", "positively correlated", _over_seeds(named("correlation"))),
    Claim("The gradient of B+ aligns with eps (alpha = 0)", "aligns", _over_seeds(named("alignment"))),
    Claim("The loss of B+ rises more than B-'s along eps", "Figure 2", _over_seeds(RISES_MORE, [RESNET])),
)
