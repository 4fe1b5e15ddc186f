"""A.2 and Figure 2: is B+ representative, and do its losses bound those of the batch?

"Equations 8 and 10 hold for every training epoch"; "B+ has the highest cosine similarities with B than B- and the
random set". Losses come from the step itself, in every step of ESAM's training; cosines from probes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from esam.analysis.picture import write_picture
from esam.report.sheets import Sheet

from . import probe, rules
from .hyperparameters import CIFAR4, PAPER, RESNET, Column, Scale
from .jobs import Job, Training, training
from .results import Claim, Results
from .rules import Verdict
from .store import RECORD, Line, Store

NUMBER, TITLE = "Figure 2, figures of A.2", "Losses and gradients of B+, B- and a random half"
DEEP = 20
"""Zeta, losses along eps and mean perturbations are probed after the first epoch and every so many."""
COLOURS = {"B+": "#c4273a", "B-": "#0d8f58", "B": "#39424d", "random": "#8a949e"}


@dataclass(frozen=True)
class Probed(Training):
    """A run of ESAM that is probed after every epoch."""

    column: Column = RESNET

    def do(self, store: Store, scale: Scale) -> None:
        """Train and probe."""
        row = PAPER[self.column]

        def look(epoch: int, model: torch.nn.Module, data: Any) -> dict[str, Any]:
            images, labels = data.train
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
            size, found = min(self.config.batch_size, len(labels) // scale.probed_batches), list[dict[str, Any]]()
            before = model.training
            model.train()
            for number in range(scale.probed_batches):
                rows = order[number * size : (number + 1) * size]
                batch = probe.Batch(model, images[rows], labels[rows])
                generator = torch.Generator().manual_seed(1_000 * epoch + number)
                seen: dict[str, Any] = probe.inside(batch, row.rho, row.gamma, generator)
                if epoch == 1 or epoch % DEEP == 0:
                    seen |= probe.deeper(batch, row.rho, row.gamma, scale.mean_draws, generator)
                found.append(seen)
            model.train(before)
            return {name: [float(f"{one[name]:.4g}") for one in found] for name in found[0]}

        self.trained(store, look)


def jobs(scale: Scale) -> list[Job]:
    """Return the probed runs of ESAM on the four columns."""
    found: list[Job] = []
    for seed in range(scale.few):
        for column in CIFAR4:
            plain = training(scale, column, "esam", seed)
            found.append(Probed(plain.name.replace("train/", "probed/"), plain.config, column))
    return found


def epochs(results: Results, column: Column) -> dict[int, list[Line]]:
    """Return what was seen in every epoch of the probed runs, by seed."""
    found = {}
    for seed in range(results.scale.few):
        name = training(results.scale, column, "esam", seed).name.replace("train/", "probed/")
        if results.store.end(name) is not None:
            found[seed] = results.store.lines(f"{name}/epochs.jsonl") or []
    return found


def fitted_from(results: Results, column: Column) -> int | None:
    """Return the first epoch after which the training accuracy of every probed run stays at 99 % or more."""
    firsts = []
    for seed in epochs(results, column):
        name = training(results.scale, column, "esam", seed).name.replace("train/", "probed/")
        lines = [line for line in results.store.lines(f"{name}/{RECORD}") or [] if line["kind"] == "epoch"]
        under = [line["epoch"] for line in lines if (line.get("train_accuracy") or 0) < rules.FITTED / 100]
        firsts.append(max(under, default=0) + 1)
    return max(firsts) if firsts else None


def differences(results: Results, column: Column, high: str, low: str) -> list[list[float]]:
    """Return, for each epoch, the difference of two losses in every batch of every seed."""
    every = list(epochs(results, column).values())
    if not every:
        return []
    return [
        [a - b for line in lines if high in line for a, b in zip(line[high], line[low], strict=True)]
        for lines in zip(*every, strict=False)
    ]


def by_seed(results: Results, column: Column, pick: Callable[[Line], list[float]]) -> list[float]:
    """Return the mean over all probed batches of each seed."""
    found = []
    for lines in epochs(results, column).values():
        values = [value for line in lines for value in pick(line)]
        if values:
            found.append(fmean(values))
    return found


def named(name: str) -> Callable[[Line], list[float]]:
    """Return what picks a figure out of an epoch's line."""
    return lambda line: line.get(name, [])


def tables(results: Results) -> Sequence[Sheet]:
    """Return mean cosines, correlation and alignment over seeds."""
    names = ("cosine B+", "cosine B-", "cosine random", "correlation", "alignment")
    rows = []
    for column in CIFAR4:
        found = {name: by_seed(results, column, named(name)) for name in names}
        if found["cosine B+"]:
            cells = (rules.interval(values).words(3, "") for values in found.values())
            rows.append((results.title(column), *cells, str(len(found["cosine B+"]))))
    return [
        Sheet(
            "Inside a batch of ESAM's training: mean ± 95 % t interval over seeds", ("Task", *names, "n"), tuple(rows)
        )
    ]


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the four losses and the cosines over epochs, and the losses along eps (Figure 2)."""
    columns = [column for column in CIFAR4 if epochs(results, column)]
    if not columns:
        return []

    def losses(figure: Any) -> None:
        every = figure.subplots(2, len(columns), squeeze=False, sharex=True)
        for place, column in enumerate(columns):
            lines = list(epochs(results, column).values())
            top, bottom = every[0][place], every[1][place]
            for name in ("B+ at eps", "B at eps", "B- at eps", "B+ at theta", "B- at theta"):
                _curve(top, lines, name, COLOURS[name.split()[0]], "-" if name.endswith("eps") else "--")
            for name in ("B+", "random", "B-"):
                _curve(bottom, lines, f"cosine {name}", COLOURS[name], "-")
            top.set_yscale("log")
            top.set_title(f"{results.title(column)}, n = {len(lines)} runs", loc="left", fontsize=8)
            bottom.set(xlabel="epoch")
            if (first := fitted_from(results, column)) is not None:
                for axes in (top, bottom):
                    axes.axvline(first, color="#b0b8c0", linewidth=1, zorder=0)
        every[0][0].set(ylabel="mean loss in the step")
        every[1][0].set(ylabel="cosine to the batch's gradient")
        named_curves = [pair for row in every for pair in zip(*row[0].get_legend_handles_labels(), strict=True)]
        handles, labels = zip(*named_curves, strict=True)
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
        figure.suptitle(
            "A.2: ESAM's training, means of the epoch; bands: deviation of runs; grey line: images fitted", fontsize=9
        )

    def along(figure: Any) -> None:
        axes = figure.subplots()
        lines = [line for seed in epochs(results, RESNET).values() for line in seed if "B+ at 0" in line]
        batches = [batch for line in lines for batch in range(len(line["B+ at 0"]))]
        for name in ("B+", "B-"):
            rises = [
                [
                    line[f"{name} at {t:g}"][b] - line[f"{name} at 0"][b]
                    for line in lines
                    for b in range(len(line["B+ at 0"]))
                ]
                for t in probe.TS
            ]
            means, spreads = [fmean(r) for r in rises], [stdev(r) if len(r) > 1 else 0.0 for r in rises]
            axes.plot(probe.TS, means, "o-", color=COLOURS[name], label=name)
            low, high = ([m + s * d for m, d in zip(means, spreads, strict=True)] for s in (-1, 1))
            axes.fill_between(probe.TS, low, high, color=COLOURS[name], alpha=0.15, linewidth=0)
        axes.set(xlabel="t: weights are theta + t eps, rho = 0.05", ylabel="rise of the mean loss from theta")
        axes.set_title(
            f"Figure 2: {results.title(RESNET)}, n = {len(batches)} batches; bands: deviation", loc="left", fontsize=9
        )
        axes.grid(True)
        axes.legend()

    written = write_picture(folder / "appendix2.png", losses, width=2.6 * max(2, len(columns)), height=5.0)
    return written + (write_picture(folder / "figure2.png", along, width=6.0, height=4.0) if RESNET in columns else [])


def _curve(axes: Any, runs: Sequence[Sequence[Line]], name: str, colour: str, dash: str) -> None:
    every = [[fmean(line[name]) for line in lines if line.get(name)] for lines in runs]
    points = list(zip(*every, strict=False))
    at = [line["epoch"] for line in runs[0] if line.get(name)][: len(points)]
    means = [fmean(point) for point in points]
    axes.plot(at, means, dash, color=colour, linewidth=1.2, label=name)
    if len(runs) > 1 and not dash.startswith("--"):
        off = [stdev(point) for point in points]
        low, high = ([m + s * d for m, d in zip(means, off, strict=True)] for s in (-1, 1))
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def _every_epoch(high: str, low: str) -> Callable[[Results], Verdict]:
    def judge(results: Results) -> Verdict:
        verdicts = []
        for column in CIFAR4:
            if found := [values for values in differences(results, column, high, low) if values]:
                verdicts.append(rules.every_epoch(found, fitted_from(results, column), f"{results.title(column)}: "))
        return rules.worst(verdicts) if verdicts else Verdict(rules.NOT_RUN, "no probed runs")

    return judge


def _rises(results: Results) -> Verdict:
    """Judge R_B- <= R_B <= R_B+ in every batch: it follows from how B+ is chosen."""
    count = held = 0
    for column in CIFAR4:
        for lines in epochs(results, column).values():
            for line in (line for line in lines if "B+ at eps" in line):
                rise = {
                    s: [a - b for a, b in zip(line[f"{s} at eps"], line[f"{s} at theta"], strict=True)]
                    for s in ("B+", "B", "B-")
                }
                count += len(rise["B"])
                # five decimals are kept of each loss, so a rise is known to 2e-5
                held += sum(
                    m - 2e-5 <= b <= p + 2e-5 for p, b, m in zip(rise["B+"], rise["B"], rise["B-"], strict=True)
                )
    if not count:
        return Verdict(rules.NOT_RUN, "no probed runs")
    return Verdict(rules.HOLDS if held == count else rules.CONTRADICTED, f"{held:,} of {count:,} steps")


def _over_seeds(
    what: str, pick: Callable[[Line], list[float]], columns: Sequence[Column] = CIFAR4
) -> Callable[[Results], Verdict]:
    """Return the judge that a mean over batches is above zero, over seeds, on every task."""

    def judge(results: Results) -> Verdict:
        verdicts = []
        for column in columns:
            if values := by_seed(results, column, pick):
                found = rules.interval(values)
                words = f"{results.title(column)} {what} {found.words(3)} (n = {found.n} runs)"
                verdicts.append(rules.above(found, 0.0, words))
        return rules.worst(verdicts) if verdicts else Verdict(rules.NOT_RUN, "no probed runs")

    return judge


def _lead(other: str) -> Callable[[Line], list[float]]:
    return lambda line: [a - b for a, b in zip(line.get("cosine B+", []), line.get(f"cosine {other}", []), strict=True)]


def _along(line: Line) -> list[float]:
    if "B+ at 1" not in line:
        return []
    sets = [[line[f"{s} at 1"][b] - line[f"{s} at 0"][b] for b in range(len(line["B+ at 0"]))] for s in ("B+", "B-")]
    return [a - b for a, b in zip(*sets, strict=True)]


CLAIMS = (
    Claim("R_B- <= R_B <= R_B+", "by construction", _rises),
    Claim("L_B- <= L_B+ at theta", "in every epoch", _every_epoch("B+ at theta", "B- at theta")),
    Claim("L_B <= L_B+ at theta + eps", "in every epoch", _every_epoch("B+ at eps", "B at eps")),
    Claim("B+ is nearer to B than B-", "much higher cosine", _over_seeds("by", _lead("B-"))),
    Claim("B+ is nearer to B than a random half", "much higher cosine", _over_seeds("by", _lead("random"))),
    Claim(
        "A sample's rise goes with its loss",
        "positively correlated",
        _over_seeds("", named("correlation")),
    ),
    Claim(
        "The gradient of B+ aligns with eps (alpha = 0)",
        "aligns",
        _over_seeds("", named("alignment")),
    ),
    Claim("The loss of B+ rises more than B-'s along eps", "Figure 2", _over_seeds("by", _along, [RESNET])),
)
