"""What do the runs of a scale come to? Accuracies and fits by seed, speeds by process; and claims on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from . import rules
from .hyperparameters import LABELS, NET_TITLES, SCALES, Column, Scale
from .jobs import timing_prefix, training
from .rules import BySeed, Interval, Verdict
from .store import PACK, Store

Case = TypeVar("Case")


@dataclass(frozen=True)
class Results:
    """The measurements of a scale."""

    store: Store
    scale: Scale

    def ends(self, column: Column, method: str, **changes: Any) -> dict[int, dict[str, Any]]:
        """Return the last lines of a method's finished runs by seed."""
        runs = {seed: training(self.scale, column, method, seed, **changes) for seed in range(self.scale.seeds)}
        return {seed: end for seed, run in runs.items() if (end := self.store.end(run.name)) is not None}

    def accuracy(self, column: Column, method: str, **changes: Any) -> BySeed:
        """Return the test accuracy after the last epoch by seed, in per cent."""
        ends = self.ends(column, method, **changes)
        return {seed: 100 * end["test_accuracy"]["last"] for seed, end in ends.items()}

    def fit(self, column: Column, method: str, **changes: Any) -> float:
        """Return the mean training accuracy in per cent."""
        return fmean(100 * end["train_accuracy"] for end in self.ends(column, method, **changes).values())

    def lead(self, column: Column, method: str, over: str = "base") -> Interval | None:
        """Return a method's accuracy over another's, paired by seed; None where they share no seed."""
        return rules.paired(self.accuracy(column, method), self.accuracy(column, over))

    def times(self, column: Column) -> dict[str, list[float]]:
        """Return the time of each method's steps over SAM's, one ratio a process."""
        found: dict[str, list[float]] = {}
        for name in self.store.names(timing_prefix(column)):
            rounds = {line["step"]: line["seconds"] for line in self.store.lines(name) or [] if "step" in line}
            for step, seconds in rounds.items():
                found.setdefault(step, []).append(sum(seconds) / sum(rounds["sam"]))
        return found

    def speed(self, column: Column, step: str, of: str = "sam") -> Interval | None:
        """Return the speed of a step in units of another's; None where one is not timed."""
        times = self.times(column)
        if step not in times or of not in times:
            return None
        return rules.speed_ratio([theirs / ours for ours, theirs in zip(times[step], times[of], strict=True)])

    def title(self, column: Column) -> str:
        """Return what was trained, in short: "ResNet-8, CIFAR-10"."""
        model = self.scale.columns[column].model
        return f"{column[0] if self.scale.real else NET_TITLES.get(model, model)}, {column[1]}"

    def label(self, column: Column, method: str) -> str:
        """Return a method's name; the base of the ViT is AdamW, that of all others SGD."""
        return "AdamW" if method == "base" and self.scale.columns[column].optimizer == "adamw" else LABELS[method]


def open_results(scale: str, out: Path) -> Results:
    """Return the results of a scale: what is committed, and what was made in a folder."""
    return Results(Store(out / scale, PACK if scale == "cpu" else None), SCALES[scale]())


Judge = Callable[[Results], Verdict]
Changes = Callable[[Results], Mapping[str, Mapping[str, Any]] | None]
"""What the runs of methods set otherwise than the paper; None where that is not known yet."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, its own figure, and the rule that judges it."""

    text: str
    paper: str
    judge: Judge


def on_each(
    cases: Collection[Case], judge: Callable[[Results, Case], Verdict | None], otherwise: str = "no runs"
) -> Judge:
    """Return the judge of a claim on several tasks or nets: it holds if it does on each that was run."""

    def judge_all(results: Results) -> Verdict:
        return rules.worst([verdict for case in cases if (verdict := judge(results, case))], otherwise)

    return judge_all


def at_least(
    columns: Sequence[Column], ours: str, theirs: str, *, changes: Changes = lambda _: {}, better: bool = False
) -> Judge:
    """Return the judge that a method is at least as accurate as another over columns; ``better``: more accurate."""

    def judge(results: Results) -> Verdict:
        changed = changes(results)
        if changed is None:
            return Verdict(rules.NOT_RUN, "the grid has not been searched")

        def gaps(one: str, two: str) -> dict[Column, BySeed]:
            pairs = {c: [results.accuracy(c, m, **changed.get(m, {})) for m in (one, two)] for c in columns}
            return {column: gap for column, pair in pairs.items() if (gap := rules.minus(*pair))}

        found = gaps(ours, theirs)
        if (mean := rules.over_tasks(list(found.values()))) is None:
            return Verdict(rules.NOT_RUN, "no runs")
        each = "; ".join(f"{results.title(column)} {fmean(gap.values()):+.2f}" for column, gap in found.items())
        words = f"{mean.words()} points (n = {mean.n}){rules.DETAILS + each if len(columns) > 1 else ''}"
        compared = [(column, method) for column in found for method in (ours, theirs)]
        fits = {
            f"{results.label(c, m)} on {results.title(c)}": results.fit(c, m, **changed.get(m, {})) for c, m in compared
        }
        sam_leads = True
        if not better and theirs == "sam":
            lead = rules.over_tasks([gap for column, gap in gaps("sam", "base").items() if column in found])
            sam_leads = lead is not None and lead.low > 0
        verdict = rules.above(mean, 0.0 if better else -rules.MARGIN, words)
        return rules.guarded(verdict, n=mean.n, fits=fits, sam_leads=sam_leads)

    return judge


more_accurate = partial(at_least, better=True)


def speed_claim(
    columns: Sequence[Column], step: str, least: float, *, of: str = "sam", most: float | None = None, gpu: bool = True
) -> Judge:
    """Return the judge of a speed in units of another's: at least ``least`` and, where given, at most ``most``.

    A ``gpu`` figure was measured on GPUs: a CPU does not contradict it.
    """

    def judge(results: Results, column: Column) -> Verdict | None:
        if (ratio := results.speed(column, step, of)) is None:
            return None
        figure = f"{100 * ratio.mean:.0f} ± {100 * ratio.half:.0f} % of {results.label(column, of)}'s speed"
        words = f"{results.title(column)}: {figure}"
        verdict = rules.above(ratio, least, words)
        if most is not None and verdict.verdict == rules.HOLDS:
            verdict = rules.above(Interval(-ratio.mean, ratio.half, ratio.n), -most, words)
        if gpu and not results.scale.real:
            verdict = rules.on_a_cpu(verdict)
        return verdict if ratio.n >= rules.PROCESSES else verdict.because(f"{ratio.n} of {rules.PROCESSES} processes")

    return on_each(columns, judge, "not timed")
