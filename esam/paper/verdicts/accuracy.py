"""Does a method generalise better, or come to a flatter minimum? Judged only where both fit their images."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from ..engine.store import Result
from ..engine.values import Repeated, finite
from ..items.planes import LandscapeFigures, Minimum
from ..items.tables import MethodFigures, TableFigures, WorkloadFigures
from .finding import (
    CONTRADICTED,
    HOLDS,
    INCONCLUSIVE,
    Finding,
    Judge,
    above_zero,
    difference,
    over_tasks,
    plus_minus,
    three,
)

FITTED = 95.0
"""Per cent of its training images that a method must get right before its accuracy or flatness is judged."""
NEAR = 0.05
"""By how much the training losses of two methods may differ where their accuracy or flatness is compared."""
UNFITTED = f"training accuracy below {FITTED:.0f} %"
APART = f"training losses further apart than {NEAR:g}"
GUARD = f"{UNFITTED}, or {APART}"


def at_least(method: str, other: str) -> Judge:
    """Judge that a method's accuracy is at least another's, over the tasks that both fit."""

    def judge(result: Result[TableFigures]) -> Finding:
        told, inside, gaps, errors = [], [], [], []
        for one in result.measured.workloads:
            mine, theirs = one.find(method), one.find(other)
            gap, error = difference(mine.accuracy, theirs.accuracy)
            fit = f"training accuracy {_fits(mine, theirs)}, n = {min(mine.accuracy.n, theirs.accuracy.n)}"
            told.append(f"{one.workload.as_run} {plus_minus(gap, error)} ({fit})")
            if _fitted(mine, theirs):
                inside.append(one.workload.as_run)
                gaps.append(gap)
                errors.append(error)
        measured = f"points: {'; '.join(told)}"
        if not inside:
            return Finding(INCONCLUSIVE, measured, f"{GUARD}, on every task")
        if None in errors:
            return Finding(INCONCLUSIVE, measured, "one value has no spread")
        gap = statistics.fmean(finite(gaps))
        error = math.sqrt(sum(error**2 for error in finite(errors))) / len(errors)
        return above_zero(gap, error, f"{plus_minus(gap, error)} on {' and '.join(inside)}, which both fit; {measured}")

    return judge


def best_share(method: str, lowest: float, highest: float) -> Judge:
    """Judge that the best value of a method's parameter lies in an interval, on every task of the study."""

    def judged(one: WorkloadFigures) -> Finding:
        studied = [own for own in one.methods if own.method == method and own.share is not None]
        best = max(studied, key=lambda own: own.accuracy.mean or 0.0)
        told = f"{one.workload.as_run}: best at {best.share:g} with {best.accuracy.words(2)} % (n = {best.accuracy.n})"
        if not _fitted(*studied):
            return Finding(INCONCLUSIVE, told, _unfitted(*studied))
        if min(own.accuracy.n for own in studied) < 2:
            return Finding(INCONCLUSIVE, told, "one seed for each value orders them by chance")
        return Finding(HOLDS if lowest <= (best.share or 0.0) <= highest else CONTRADICTED, told)

    return lambda result: over_tasks(map(judged, result.measured.workloads))


def smallest_that_keeps(method: str, value: float, other: str) -> Judge:
    """Judge that a method's parameter keeps another's accuracy at this value, and does not at the next smaller one."""

    def judged(one: WorkloadFigures) -> Finding:
        studied = {own.share: own for own in one.methods if own.method == method and own.share is not None}
        smaller = max((share for share in studied if share < value), default=None)
        theirs = one.find(other)
        if value not in studied or smaller is None:
            return Finding(INCONCLUSIVE, f"{one.workload.as_run}: {len(studied)} values", "the value is not among them")
        here, below = studied[value], studied[smaller]
        gaps = [difference(own.accuracy, theirs.accuracy) for own in (here, below)]
        words = [f"{plus_minus(*gap)} at {share:g}" for gap, share in zip(gaps, (value, smaller), strict=True)]
        told = f"{one.workload.as_run}, points over {theirs.label}: {' and '.join(words)} (n = {here.accuracy.n})"
        if not _fitted(here, below, theirs):
            return Finding(INCONCLUSIVE, told, _unfitted(here, below, theirs))
        at, under = (above_zero(*gap, told).verdict for gap in gaps)
        if at == CONTRADICTED:
            return Finding(CONTRADICTED, told)
        if at == HOLDS and under == CONTRADICTED:
            return Finding(HOLDS, told)
        return Finding(INCONCLUSIVE, told, "a difference is within two standard errors of zero")

    return lambda result: over_tasks(map(judged, result.measured.workloads))


def flatter(method: str, pick: Callable[[Minimum], Repeated | None]) -> Judge:
    """Judge that a figure of a method's minimum is below that of SGD's."""

    def judge(result: Result[LandscapeFigures]) -> Finding:
        minima = {own.method: own for own in result.measured.minima}
        mine, base = minima[method], minima["base"]
        ours, theirs = pick(mine) or Repeated(()), pick(base) or Repeated(())
        told = f"{three(ours)} and {base.label} {three(theirs)} (n = {ours.n} seeds)"
        if not _fitted(mine, base):
            return Finding(INCONCLUSIVE, told, _unfitted(mine, base))
        return above_zero(*difference(theirs, ours), f"{told}; training accuracy {_fits(mine, base)}")

    return judge


def _fitted(*methods: MethodFigures | Minimum) -> bool:
    """Tell whether all have fitted their images, to losses that are near one another."""
    return all((own.train_accuracy.mean or 0.0) >= FITTED for own in methods) and _spread_of_losses(*methods) <= NEAR


def _spread_of_losses(*methods: MethodFigures | Minimum) -> float:
    losses = finite(own.train_loss.mean for own in methods if own.train_loss is not None)
    return max(losses) - min(losses) if losses else 0.0


def _unfitted(*methods: MethodFigures | Minimum) -> str:
    """Say which part of the guard is broken."""
    each = [own.train_accuracy.mean or 0.0 for own in methods]
    if min(each) >= FITTED:
        return f"{APART}: by {_spread_of_losses(*methods):.2f}"
    return f"{UNFITTED}: {_fits(*methods) if len(methods) == 2 else f'{min(each):.1f} to {max(each):.1f} %'}"


def _fits(*methods: MethodFigures | Minimum) -> str:
    return ", ".join(f"{own.label} {own.train_accuracy.mean or 0.0:.1f} %" for own in methods)
