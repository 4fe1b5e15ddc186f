"""How is a claim judged? The rules of RULES.md on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import Any

HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_RUN = "holds", "contradicted", "inconclusive", "not run"
MARGIN = 0.45
"""Points of accuracy by which a method may be under another and still be "at least" as good (rule 1)."""
SEEDS = 6
DETAILS = " | "
"""Before what is left out on a page: other tasks than the one that decides."""
PROCESSES = 5
"""In which a speed must be timed at least (rule 14)."""
FITTED = 99.0
"""Per cent of the training images that every method compared must get right (rule 4)."""

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Verdict:
    """What was found, in words with n and error, and the reason where it cannot be told."""

    verdict: str
    measured: str
    reason: str = ""

    def words(self, *, short: bool = False) -> str:
        """Say what was measured, and the reason."""
        measured = self.measured.split(DETAILS)[0] if short else self.measured
        return f"{measured}; {self.reason}" if self.reason else measured

    def on(self, task: str) -> Verdict:
        """Return the verdict with the task it is on."""
        return replace(self, measured=f"{task}: {self.measured}")

    def because(self, reason: str) -> Verdict:
        """Return the verdict as inconclusive for this reason; one that was not run stays so."""
        return self if self.verdict == NOT_RUN else replace(self, verdict=INCONCLUSIVE, reason=reason)


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % t interval over n values; infinitely wide where n is 1."""

    mean: float
    half: float
    n: int

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half

    def words(self, decimals: int = 2, sign: str = "+") -> str:
        """Say mean ± half the interval."""
        half = f"{self.half:.{decimals}f}" if math.isfinite(self.half) else "?"
        return f"{self.mean:{sign}.{decimals}f} ± {half}"


def finite(half: float) -> float:
    """Return half an interval as it is drawn: nothing where a single value leaves it infinite."""
    return half if math.isfinite(half) else 0.0


def quantile(p: float, n: int) -> float:
    """Return Student's t below which a share p lies, for n values."""
    from scipy.stats import t

    return float(t.ppf(p, n - 1)) if n > 1 else math.inf


def interval(values: Sequence[float], tests: float = 1) -> Interval:
    """Return the mean and its 95 % t interval, widened by Bonferroni for so many tests; half of them: one-sided."""
    n = len(values)
    half = quantile(1 - 0.025 / tests, n) * stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return Interval(fmean(values), half, n)


def minus(ours: BySeed, theirs: BySeed) -> BySeed:
    """Return the differences by seed."""
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}


def paired(ours: BySeed, theirs: BySeed, tests: int = 1) -> Interval | None:
    """Return the difference, seed by seed; None where they share no seed."""
    gaps = minus(ours, theirs)
    return interval(list(gaps.values()), tests) if gaps else None


def over_tasks(gaps: Sequence[BySeed]) -> Interval | None:
    """Return the mean over tasks by seed, for the seeds that all tasks have (rule 2); None without any."""
    shared = set.intersection(*(set(gap) for gap in gaps)) if gaps else set()
    return interval([fmean(gap[seed] for gap in gaps) for seed in sorted(shared)]) if shared else None


def above(gap: Interval, threshold: float, measured: str) -> Verdict:
    """Judge that a mean lies above a threshold by its whole interval: superior to 0, not inferior to -MARGIN."""
    if gap.low > threshold:
        return Verdict(HOLDS, measured)
    if gap.high < threshold:
        return Verdict(CONTRADICTED, measured)
    return Verdict(INCONCLUSIVE, measured, f"the interval has {threshold:g} in it")


def best_of(values: Mapping[float, BySeed], claimed: Sequence[float]) -> Verdict:
    """Judge that the best of a parameter's values is among those claimed (rule 6)."""
    means = {value: fmean(found.values()) for value, found in values.items() if found}
    ours = max((value for value in means if value in claimed), key=means.__getitem__, default=None)
    if ours is None:
        return Verdict(NOT_RUN, "none of the values claimed was run")
    n = min(len(found) for found in values.values())
    words = f"best at {max(means, key=means.__getitem__):g}; {ours:g} has {means[ours]:.2f} % (n = {n})"
    others = [value for value in means if value not in claimed]
    gaps = {value: gap for value in others if (gap := paired(values[ours], values[value], len(others)))}
    if others and all(value in gaps and gaps[value].low > 0 for value in others):
        return Verdict(HOLDS, words)
    if better := [value for value, gap in gaps.items() if gap.high < 0]:
        return Verdict(CONTRADICTED, f"{words}; {better[0]:g} is above it")
    return Verdict(INCONCLUSIVE, words, "the values differ by less than their errors")


def smallest_that_keeps(values: Mapping[float, BySeed], claimed: float, reference: BySeed) -> Verdict:
    """Judge that a parameter's value is the smallest that keeps the reference's accuracy (rule 6)."""
    found = {value: gap for value, own in values.items() if (gap := paired(own, reference)) is not None}
    smaller = max((value for value in found if value < claimed), default=None)
    if claimed not in found or smaller is None:
        return Verdict(NOT_RUN, "the value claimed and a smaller one are needed")
    words = ", ".join(f"{found[value].words()} at {value:g}" for value in (claimed, smaller))
    words += f" points from SAM (n = {found[claimed].n})"
    if found[claimed].high < -MARGIN or any(gap.low > -MARGIN for value, gap in found.items() if value < claimed):
        return Verdict(CONTRADICTED, words)
    if found[claimed].low > -MARGIN and found[smaller].high < -MARGIN:
        return Verdict(HOLDS, words)
    return Verdict(INCONCLUSIVE, words, "an interval has the margin in it")


def every_epoch(differences: Sequence[Sequence[float]], fitted_from: int | None) -> Verdict:
    """Judge that a difference is above zero in every epoch, tested with an error in each (rule 10).

    ``differences`` has for each epoch those of all batches of all seeds; ``fitted_from`` is the first epoch in which
    the images are fitted, None if that was not recorded.
    """
    tests = len(differences)
    below = {number: values for number, values in enumerate(differences, 1) if fmean(values) < 0}
    violated = [number for number, values in below.items() if interval(values, tests / 2).high < 0]
    words = f"{tests - len(below)} of {tests} epochs above zero"
    if below:
        when = f"epochs {min(below)} to {max(below)}"
        if fitted_from is not None:
            late = sum(number >= fitted_from for number in below)
            when = f"{late} after the images are fitted" if late else "all before the images are fitted"
        words += f", {len(violated)} below it by more than their error; those below: {when}"
    if violated:
        return Verdict(CONTRADICTED, words)
    if len(below) <= 0.05 * tests:
        return Verdict(HOLDS, words)
    return Verdict(INCONCLUSIVE, words, "means are below zero by less than their errors")


def speed_ratio(ratios: Sequence[float]) -> Interval:
    """Return the median of processes' ratios, with a t interval of their logarithms put around it (rule 14)."""
    logs = interval([math.log(ratio) for ratio in ratios])
    centre = median(ratios)
    half = centre * (math.exp(logs.half) - 1) if math.isfinite(logs.half) else math.inf
    return Interval(centre, half, len(ratios))


def on_a_cpu(verdict: Verdict) -> Verdict:
    """Return a verdict on a figure that was measured on a GPU: a CPU does not contradict it (rule 15)."""
    return verdict.because("on a CPU") if verdict.verdict == CONTRADICTED else verdict


@dataclass(frozen=True)
class Fit:
    """g = k1 (1 - beta) + k2 (1 - beta) / (N beta) by least squares; intervals are 95 %."""

    k1: Interval
    k2: Interval
    r_squared: float
    one_term: float
    """How much of the squared error of k1 alone the second term leaves."""


def form(layers_and_beta: Any, k1: float, k2: float) -> Any:
    """Return the paper's g(N, beta), of numbers or of arrays."""
    layers, beta = layers_and_beta
    return k1 * (1 - beta) + k2 * (1 - beta) / (layers * beta)


def fit_savings(savings: Mapping[tuple[int, float], float]) -> Fit:
    """Fit the paper's form to g by layers and beta."""
    import numpy as np
    from scipy.optimize import curve_fit

    at, g = np.array(list(savings), dtype=float).T, np.array(list(savings.values()))
    ks, covariance = curve_fit(form, at, g, p0=(0.3, 0.1))
    (alone,), _ = curve_fit(lambda x, k1: form(x, k1, 0.0), at, g)
    left, left_alone, total = (float(((g - f) ** 2).sum()) for f in (form(at, *ks), form(at, alone, 0.0), g.mean()))
    halves = quantile(0.975, len(g) - 1) * np.sqrt(np.diag(covariance))
    k1, k2 = (Interval(float(k), float(half), len(g)) for k, half in zip(ks, halves, strict=True))
    return Fit(k1, k2, 1 - left / total if total else 1.0, left / left_alone if left_alone else 0.0)


def form_holds(fit: Fit, measured: str) -> Verdict:
    """Judge the form: the second term is there, and does at least half of the work that k1 leaves (rule 16)."""
    verdict = above(fit.k2, 0.0, measured)
    if verdict.verdict == HOLDS and fit.one_term > 0.5:
        return verdict.because("the second term leaves more than half of the error of k1 alone")
    return verdict


def papers_constant(found: Interval, paper: float, measured: str) -> Verdict:
    """Judge that a fitted constant is the paper's: within its interval, widened by a tenth of the value (rule 16)."""
    if abs(found.mean - paper) > found.half + 0.1 * paper:
        return Verdict(CONTRADICTED, measured)
    verdict = Verdict(HOLDS, measured)
    return verdict if found.half <= 0.5 * paper else verdict.because("the interval is too wide to tell")


def guarded(verdict: Verdict, *, n: int, fits: Mapping[str, float], sam_leads: bool = True) -> Verdict:
    """Return a verdict on accuracy, inconclusive where its conditions are not met (rules 3 and 4)."""
    unfitted = {name: fit for name, fit in fits.items() if fit < FITTED}
    if unfitted:
        least = min(unfitted, key=unfitted.__getitem__)
        others = f", and {len(unfitted) - 1} others" if len(unfitted) > 1 else ""
        return verdict.because(f"not fitted: {least} {unfitted[least]:.1f} %{others}")
    if n < SEEDS:
        return verdict.because(f"{n} of {SEEDS} seeds")
    return verdict if sam_leads else verdict.because("SAM itself does not lead SGD here")


def worst(verdicts: Sequence[Verdict], otherwise: str = "no runs") -> Verdict:
    """Return the verdicts of several tasks as one: a claim about all of them holds only if each does."""
    if not verdicts:
        return Verdict(NOT_RUN, otherwise)
    order = (CONTRADICTED, INCONCLUSIVE, NOT_RUN, HOLDS)
    ordered = sorted(verdicts, key=lambda one: order.index(one.verdict))  # the one that decides comes first
    verdict = ordered[0].verdict
    reasons = dict.fromkeys(one.reason for one in ordered if one.verdict == verdict and one.reason)
    return Verdict(verdict, DETAILS.join(one.measured for one in ordered), "; ".join(reasons))
