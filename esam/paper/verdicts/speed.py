"""Is a method as fast as the paper says? Judged by a whole interval, on a named device."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..engine.store import Result
from ..items.savings_timing import predicted
from ..items.swp_savings import CaseFigures, SavingsFigures
from ..items.tables import TableFigures, WorkloadFigures
from ..items.timing import Ratio, Speed
from .finding import CONTRADICTED, HOLDS, INCONCLUSIVE, Finding, Judge, above_zero, over_tasks, plus_minus

ON_CPU = "a CPU does not contradict a GPU's figure"


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
        found = _on_this_device(result, tasks[0].threads, over_tasks(map(judged, tasks)))
        return replace(found, measured=f"{what}, n = {tasks[0].find(method).speed.rounds} steps, {found.measured}")

    return judge


def form_of_savings(result: Result[SavingsFigures]) -> Finding:
    """Judge g's form in both cases."""
    return _on_this_device(result, result.measured.threads, over_tasks(map(_form, result.measured.cases)))


def _form(own: CaseFigures) -> Finding:
    fit, n = own.fit, len(own.savings)
    k2 = plus_minus(fit.k2, fit.k2_error, 3, sign="")
    told = f"{own.case}: k1 {fit.k1:.3f}, k2 {k2}, R² {fit.r_squared:.4f} (n = {n})"
    if fit.r_squared >= 0.95:
        return above_zero(fit.k2, fit.k2_error, told, what=f"k2 of the {own.case} case")
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
