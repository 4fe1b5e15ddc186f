"""What do the runs of a scale come to? Accuracies and fits by seed, speeds by process; and claims on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from . import rules
from .hyperparameters import LABELS, NET_TITLES, Column, Scale
from .jobs import training
from .rules import BySeed, Interval, Verdict
from .speed import timing_prefix
from .store import Store


@dataclass(frozen=True)
class Results:
    """The measurements of a scale."""

    store: Store
    scale: Scale

    def ends(self, column: Column, method: str, **changes: Any) -> dict[int, dict[str, Any]]:
        """Return the last lines of a method's finished runs by seed."""
        found = {}
        for seed in range(self.scale.seeds):
            end = self.store.end(training(self.scale, column, method, seed, **changes).name)
            if end is not None:
                found[seed] = end
        return found

    def accuracy(self, column: Column, method: str, **changes: Any) -> BySeed:
        """Return the test accuracy after the last epoch by seed, in per cent."""
        ends = self.ends(column, method, **changes)
        return {seed: 100 * end["test_accuracy"]["last"] for seed, end in ends.items()}

    def fit(self, column: Column, method: str, **changes: Any) -> float:
        """Return the mean training accuracy in per cent."""
        return fmean(100 * end["train_accuracy"] for end in self.ends(column, method, **changes).values())

    def speeds(self, column: Column) -> dict[str, list[float]]:
        """Return the time of each method's steps over SAM's, one ratio a process."""
        found: dict[str, list[float]] = {}
        for name in self.store.names(timing_prefix(column)):
            rounds = {line["step"]: line["seconds"] for line in self.store.lines(name) or [] if "step" in line}
            for step, seconds in rounds.items():
                found.setdefault(step, []).append(sum(seconds) / sum(rounds["sam"]))
        return found

    def columns(self, wanted: Iterable[Column], *methods: str) -> list[Column]:
        """Return the columns in which all these methods have finished runs."""
        return [column for column in wanted if all(self.ends(column, method) for method in methods)]

    def title(self, column: Column) -> str:
        """Return what was trained, in short: "ResNet-8, CIFAR-10"."""
        model = self.scale.columns[column].model
        return f"{column[0] if self.scale.real else NET_TITLES.get(model, model)}, {column[1]}"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, its own figure, and the rule that judges it."""

    text: str
    paper: str
    judge: Callable[[Results], Verdict]


def accuracy_claim(
    columns: Sequence[Column],
    ours: str,
    theirs: str,
    *,
    better: bool = False,
    ours_changes: dict[str, Any] | None = None,
    theirs_changes: dict[str, Any] | None = None,
) -> Callable[[Results], Verdict]:
    """Return the judge that a method is at least as accurate as another over columns; ``better``: more accurate."""

    def judge(results: Results) -> Verdict:
        mine, other = ours_changes or {}, theirs_changes or {}
        gaps, fits, leads = {}, {}, []
        for column in columns:
            if column not in results.scale.columns:
                continue
            one, two = results.accuracy(column, ours, **mine), results.accuracy(column, theirs, **other)
            if gap := rules.minus(one, two):
                gaps[column] = gap
                fits[f"{LABELS[ours]} on {results.title(column)}"] = results.fit(column, ours, **mine)
                fits[f"{LABELS[theirs]} on {results.title(column)}"] = results.fit(column, theirs, **other)
                leads.append(rules.minus(results.accuracy(column, "sam"), results.accuracy(column, "base")))
        return judge_gaps(results, gaps, fits, leads if theirs == "sam" and not better else [], better=better)

    return judge


def judge_gaps(
    results: Results, gaps: dict[Column, BySeed], fits: dict[str, float], leads: list[BySeed], *, better: bool
) -> Verdict:
    """Judge differences by seed on several tasks; ``leads`` are SAM's over SGD where they must be above zero."""
    shared = rules.over_tasks(list(gaps.values()))
    if not shared:
        return Verdict(rules.NOT_RUN, "no runs")
    whole = rules.interval(list(shared.values()))
    each = "; ".join(f"{results.title(column)} {fmean(gap.values()):+.2f}" for column, gap in gaps.items())
    words = (
        f"{whole.words()} points (n = {whole.n}): {each}"
        if len(gaps) > 1
        else f"{each} ± {whole.half:.2f} (n = {whole.n})"
    )
    verdict = rules.superior(whole, words) if better else rules.non_inferior(whole, words)
    lead = rules.over_tasks(leads) if leads else {}
    sam_leads = not leads or (len(lead) > 1 and rules.interval(list(lead.values())).low > 0)
    return rules.guarded(verdict, n=whole.n, fits=fits, sam_leads=sam_leads)


def speed_claim(
    columns: Sequence[Column], step: str, least: float, *, of: str = "sam", most: float | None = None
) -> Callable[[Results], Verdict]:
    """Return the judge of a speed in units of another's: at least ``least`` and, where given, at most ``most``."""

    def judged(results: Results, column: Column) -> Verdict | None:
        times = results.speeds(column)
        if step not in times or of not in times:
            return None
        ratio = rules.speed_ratio([b / a for a, b in zip(times[step], times[of], strict=True)])
        words = f"{results.title(column)} {percent(ratio)}"
        if ratio.n < 5:
            return Verdict(rules.INCONCLUSIVE, words, "fewer than 5 processes")
        verdict = rules.above(ratio, least, words)
        if most is not None and verdict.verdict == rules.HOLDS:
            verdict = rules.above(Interval(-ratio.mean, ratio.half, ratio.n), -most, words)
        return verdict

    def judge(results: Results) -> Verdict:
        found = [judged(results, column) for column in columns if column in results.scale.columns]
        verdicts = [verdict for verdict in found if verdict is not None]
        if not verdicts:
            return Verdict(rules.NOT_RUN, "not timed")
        n = min(len(results.speeds(column)[step]) for column in columns if step in results.speeds(column))
        worst = rules.worst(verdicts)
        return replace(worst, measured=f"{worst.measured} (n = {n} processes)")

    return judge


def figure_of_a_gpu(judge: Callable[[Results], Verdict]) -> Callable[[Results], Verdict]:
    """Return a judge of a figure that the paper measured on GPUs: a CPU does not contradict it."""
    return lambda results: judge(results) if results.scale.real else rules.on_a_cpu(judge(results))


def percent(ratio: Interval) -> str:
    """Say a ratio with its interval in per cent."""
    return f"{100 * ratio.mean:.0f} ± {100 * ratio.half:.0f} %"
