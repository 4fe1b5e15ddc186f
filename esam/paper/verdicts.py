"""How is a claim judged by what was measured? By these rules, not by opinion.

A claim *holds*, is *contradicted*, is *inconclusive* (measured, but it cannot be told: with the reason), or was *not
run*. A claim about several tasks is contradicted when one task contradicts it, holds when all agree, and else is
inconclusive. Two means are told apart when they differ by more than two standard errors of their difference; one seed
has no standard error, and is inconclusive.

Accuracy: both methods must fit their training images, that is reach a training accuracy of 95 % or more: what has not
learnt its images yet says nothing of generalisation. Tasks outside this guard are named with both training accuracies
and left out. Over the tasks inside it, the mean difference of the test accuracies must be above zero. The best value of
a parameter must lie in the paper's interval, on every task.

Flatness: the same guard, since one that has not fitted its images is flat for that alone; the figure of the method's
minimum must be below that of SGD's.

Speed and cost: steps timed in turn in one run; the whole interval of the ratio is on the right side of the paper's
figure, or on the wrong one. The device is named. The paper's figures are a GPU's: a CPU can agree with them, but not
contradict them, and is then inconclusive. The same goes for the form of g(N, beta), which must explain .95 or more of
the variance in both cases, with a second term above zero; where it explains less it is contradicted if the measurements
are further off than twice their errors.

Inside a batch: what is claimed of every batch or epoch must hold in at least 95 % of them, an epoch counting by the
means over its batches. Cosines are compared within a batch, and the mean difference must be above zero. SWP's mean
perturbation may be half as far again from SAM's as chance explains. zeta must rise with beta, by a rank correlation of
.8 or more, and be below SAM's at the smallest beta.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from .engine.store import Result
from .engine.values import Repeated, finite
from .items.cosines import leads
from .items.four_losses import held
from .items.linearity import BetaZetas, LinearityFigures
from .items.planes import LandscapeFigures, Minimum
from .items.probes import ProbedRun
from .items.savings_timing import predicted
from .items.sds_illustration import AlongFigures
from .items.swp_savings import CaseFigures, SavingsFigures
from .items.tables import MethodFigures, TableFigures, WorkloadFigures
from .items.timing import Ratio, Speed

HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_RUN = "holds", "contradicted", "inconclusive", "not run"
FITTED = 95.0
"""Per cent of its training images that a method must get right before its accuracy or flatness is judged."""
EVERY = 0.95
"""The share of batches or epochs that must agree with a claim about every one."""
ON_CPU = "a CPU does not contradict a GPU's figure"


@dataclass(frozen=True)
class Finding:
    """A verdict, what was measured, and why it cannot be told where that is so."""

    verdict: str
    measured: str
    why: str = ""


Judge = Callable[[Result[Any]], Finding]
"""An item's result -> what it says of a claim."""

# Accuracy ------------------------------------------------------------------------------------------------------------


def at_least(method: str, other: str) -> Judge:
    """Judge that a method's accuracy is at least another's, over the tasks that both fit."""

    def judge(result: Result[TableFigures]) -> Finding:
        told, inside, gaps, errors = [], [], [], []
        for one in result.measured.workloads:
            mine, theirs = one.find(method), one.find(other)
            gap, error = _difference(mine.accuracy, theirs.accuracy)
            fit = f"training accuracy {_fits(mine, theirs)}, n = {min(mine.accuracy.n, theirs.accuracy.n)}"
            told.append(f"{one.workload.as_run} {_plus_minus(gap, error)} ({fit})")
            if _fitted(mine, theirs):
                inside.append(one.workload.as_run)
                gaps.append(gap)
                errors.append(error)
        measured = f"points: {'; '.join(told)}"
        if not inside:
            return Finding(INCONCLUSIVE, measured, f"{_UNFITTED} on every task")
        if None in errors:
            return Finding(INCONCLUSIVE, measured, "one value has no spread")
        gap = statistics.fmean(finite(gaps))
        error = math.sqrt(sum(error**2 for error in finite(errors))) / len(errors)
        return _above_zero(
            gap, error, f"{_plus_minus(gap, error)} on {' and '.join(inside)}, which both fit; {measured}"
        )

    return judge


def best_share(method: str, lowest: float, highest: float) -> Judge:
    """Judge that the best value of a method's parameter lies in an interval, on every task of the study."""

    def judged(one: WorkloadFigures) -> Finding:
        studied = [own for own in one.methods if own.method == method and own.share is not None]
        best = max(studied, key=lambda own: own.accuracy.mean or 0.0)
        told = f"{one.workload.as_run}: best at {best.share:g} with {best.accuracy.words(2)} % (n = {best.accuracy.n})"
        if not _fitted(*studied):
            fits = [own.train_accuracy.mean or 0.0 for own in studied]
            return Finding(INCONCLUSIVE, told, f"{_UNFITTED}: {min(fits):.1f} to {max(fits):.1f} %")
        if min(own.accuracy.n for own in studied) < 2:
            return Finding(INCONCLUSIVE, told, "one seed for each value orders them by chance")
        return Finding(HOLDS if lowest <= (best.share or 0.0) <= highest else CONTRADICTED, told)

    return lambda result: _over_tasks(map(judged, result.measured.workloads))


# Speed ---------------------------------------------------------------------------------------------------------------


def faster(method: str, least: float) -> Judge:
    """Judge that a method's steps have this many times SAM's speed or more, on every task."""
    return _timed(method, "of SAM's speed", lambda own: own.over_sam, lambda low, high: (low >= least, high < least))


def costs(method: str, most: float) -> Judge:
    """Judge that a method's steps take at most this many times the base optimizer's time, on every task."""
    return _timed(method, "of SGD's time", lambda own: own.time_over_base, lambda low, high: (high <= most, low > most))


def _timed(
    method: str, what: str, pick: Callable[[Speed], Ratio], sides: Callable[[float, float], tuple[bool, bool]]
) -> Judge:
    """Judge by the whole interval of a ratio of times; ``sides`` tells whether it is on the right or the wrong side."""

    def judged(one: WorkloadFigures) -> Finding:
        ratio = pick(one.find(method).speed)
        low, high = min(ratio.low, ratio.value), max(ratio.high, ratio.value)
        told = f"{one.workload.as_run} {100 * ratio.value:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
        right, wrong = sides(low, high)
        if not right and not wrong:
            return Finding(INCONCLUSIVE, told, "the interval holds the paper's figure")
        return Finding(HOLDS if right else CONTRADICTED, told)

    def judge(result: Result[TableFigures]) -> Finding:
        tasks = result.measured.workloads
        found = _on_this_device(result, tasks[0].threads, _over_tasks(map(judged, tasks)))
        return replace(found, measured=f"{what}, n = {tasks[0].find(method).speed.rounds} steps, {found.measured}")

    return judge


def form_of_savings(result: Result[SavingsFigures]) -> Finding:
    """Judge g's form in both cases."""
    return _on_this_device(result, result.measured.threads, _over_tasks(map(_form, result.measured.cases)))


def _form(own: CaseFigures) -> Finding:
    fit, n = own.fit, len(own.savings)
    k2 = _plus_minus(fit.k2, fit.k2_error, 3, sign="")
    told = f"{own.case}: k1 {fit.k1:.3f}, k2 {k2}, R² {fit.r_squared:.4f} (n = {n})"
    if fit.r_squared >= 0.95:
        return _above_zero(fit.k2, fit.k2_error, told, what=f"k2 of the {own.case} case")
    off = [((s.saved - predicted(fit, s.layers, s.beta)) / s.error) ** 2 for s in own.savings if s.error]
    if not off or statistics.fmean(off) > 2**2:
        return Finding(CONTRADICTED, told)
    return Finding(INCONCLUSIVE, told, f"R² is {fit.r_squared:.2f}, but nothing is further off than its errors explain")


def _on_this_device(result: Result[Any], threads: int, found: Finding) -> Finding:
    """Name the device; a CPU does not contradict."""
    cpu = str(result.environment["device"]).startswith("cpu")
    device = f"{result.environment['hardware']}, {threads} thread{'s' * (threads > 1)}"
    told = f"{device if cpu else result.environment['hardware']}: {found.measured}"
    if cpu and found.verdict == CONTRADICTED:
        return Finding(INCONCLUSIVE, told, ON_CPU)
    return replace(found, measured=told)


# Inside a batch ------------------------------------------------------------------------------------------------------


def every_batch(inequality: str) -> Judge:
    """Judge that an inequality holds in every batch, of every task."""

    def judged(run: ProbedRun) -> Finding:
        count = sum(map(len, next(iter(run.series.values())).values))
        return _every(run.workload.as_run, held(run, inequality)[0], count, "batches")

    return lambda result: _over_tasks(map(judged, result.measured.runs))


def every_epoch(inequality: str) -> Judge:
    """Judge that an inequality holds in every epoch, by the means over its batches, on every task."""

    def judged(run: ProbedRun) -> Finding:
        return _every(run.workload.as_run, held(run, inequality)[1], len(run.epochs), "epochs")

    return lambda result: _over_tasks(map(judged, result.measured.runs))


def rises_most(result: Result[AlongFigures]) -> Finding:
    """Judge that the loss of B+ rises more than that of B- wherever measured along eps, in every batch."""
    own = result.measured
    return _every(own.workload.as_run, own.plus_above_minus, own.batches, "batches")


def nearer(other: str) -> Judge:
    """Judge that the gradient of B+ is nearer to the batch's than another set's, on every task."""

    def judged(run: ProbedRun) -> Finding:
        gaps = Repeated(tuple(leads(run, other)))
        error = None if gaps.std is None else gaps.std / math.sqrt(gaps.n)
        means = " and ".join(run.series[name].batches.words(3) for name in ("B+", other))
        return _above_zero(gaps.mean, error, f"{run.workload.as_run}: {means} (n = {gaps.n} batches)")

    return lambda result: _over_tasks(map(judged, result.measured.runs))


def unbiased(result: Result[LinearityFigures]) -> Finding:
    """Judge that SWP's mean perturbation is SAM's: no further from it than half as much again as chance explains."""
    every = [one for one in result.measured.mean_perturbations if one.distance is not None]
    if not every:
        return Finding(INCONCLUSIVE, "no perturbation", "nothing was finite")
    cosine, norm = Repeated(tuple(one.cosine for one in every)), Repeated(tuple(one.norm for one in every))
    ratio = statistics.fmean((one.distance or 0.0) / one.expected_distance for one in every)
    told = (
        f"cosine {cosine.words(4)}, norm {norm.words(4)} of SAM's, {ratio:.2f} times the distance that chance explains "
        f"({every[0].draws} masks for one gradient, n = {len(every)} epochs)"
    )
    return Finding(HOLDS if ratio <= 1.5 else CONTRADICTED, told)


def more_linear(pick: Callable[[BetaZetas], Repeated]) -> Judge:
    """Judge that zeta grows with beta, and that the smallest beta is below SAM."""

    def judge(result: Result[LinearityFigures]) -> Finding:
        from scipy.stats import spearmanr

        own = result.measured
        betas, means, sam = [one.beta for one in own.swp], finite(pick(one).mean for one in own.swp), own.sam.mean
        if sam is None or len(means) < max(3, len(betas)):
            return Finding(INCONCLUSIVE, f"{len(means)} values of beta", "too few values are finite")
        order = float(spearmanr(betas, means).statistic)
        told = (
            f"zeta {means[0]:.2e} at beta {betas[0]:g}, {means[-1]:.2e} at {betas[-1]:g}, SAM {sam:.2e}; "
            f"rank correlation with beta {order:+.2f} (n = {own.sam.n} batches)"
        )
        return Finding(HOLDS if order >= 0.8 and means[0] < sam else CONTRADICTED, told)

    return judge


# Flatness ------------------------------------------------------------------------------------------------------------


def flatter(method: str, pick: Callable[[Minimum], Repeated | None]) -> Judge:
    """Judge that a figure of a method's minimum is below that of SGD's."""

    def judge(result: Result[LandscapeFigures]) -> Finding:
        minima = {own.method: own for own in result.measured.minima}
        mine, base = minima[method], minima["base"]
        ours, theirs = pick(mine) or Repeated(()), pick(base) or Repeated(())
        told = f"{_three(ours)} and {base.label} {_three(theirs)} (n = {ours.n} seeds)"
        if not _fitted(mine, base):
            return Finding(INCONCLUSIVE, told, f"{_UNFITTED}: {_fits(mine, base)}")
        return _above_zero(*_difference(theirs, ours), f"{told}; training accuracy {_fits(mine, base)}")

    return judge


# The parts of a verdict ----------------------------------------------------------------------------------------------


_UNFITTED = f"training accuracy below {FITTED:.0f} %"


def _fitted(*methods: MethodFigures | Minimum) -> bool:
    return all((own.train_accuracy.mean or 0.0) >= FITTED for own in methods)


def _fits(*methods: MethodFigures | Minimum) -> str:
    return ", ".join(f"{own.label} {own.train_accuracy.mean or 0.0:.1f} %" for own in methods)


def _difference(one: Repeated, other: Repeated) -> tuple[float | None, float | None]:
    """Return the difference of two means, and its standard error where both have two values or more."""
    gap = None if one.mean is None or other.mean is None else one.mean - other.mean
    if one.std is None or other.std is None:
        return gap, None
    return gap, math.sqrt(one.std**2 / one.n + other.std**2 / other.n)


def _above_zero(gap: float | None, error: float | None, measured: str, *, what: str = "the difference") -> Finding:
    """Judge that a difference is above zero by more than two standard errors."""
    if gap is None:
        return Finding(INCONCLUSIVE, measured, "not finite")
    if error is None:
        return Finding(INCONCLUSIVE, measured, "one value has no spread")
    if abs(gap) <= 2 * error:
        return Finding(INCONCLUSIVE, measured, f"{what} is within two standard errors of zero")
    return Finding(HOLDS if gap > 0 else CONTRADICTED, measured)


def _every(task: str, count: int, whole: int, what: str) -> Finding:
    told = f"{task}: {count} of {whole} {what}"
    if not whole:
        return Finding(INCONCLUSIVE, told, "nothing was finite")
    return Finding(HOLDS if count >= EVERY * whole else CONTRADICTED, told)


def _over_tasks(each: Iterable[Finding]) -> Finding:
    """Return the findings of several tasks as one."""
    findings = list(each)
    verdict = next(v for v in (CONTRADICTED, INCONCLUSIVE, HOLDS) if any(one.verdict == v for one in findings))
    whys = dict.fromkeys(one.why for one in findings if one.verdict == verdict)
    return Finding(verdict, "; ".join(one.measured for one in findings), "; ".join(whys))


def _plus_minus(value: float | None, error: float | None, decimals: int = 2, *, sign: str = "+") -> str:
    text = "not finite" if value is None else f"{value:{sign}.{decimals}f}"
    return text if error is None else f"{text} ± {error:.{decimals}f}"


def _three(values: Repeated) -> str:
    if values.mean is None:
        return "not finite"
    return f"{values.mean:.3g}" + ("" if values.std is None else f" ± {values.std:.2g}")
