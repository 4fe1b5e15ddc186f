"""Does what the paper says of a batch, its samples and its perturbation hold in those that were probed?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from ..engine.store import Result
from ..engine.values import Repeated, finite
from ..items.cosines import leads
from ..items.four_losses import held
from ..items.linearity import BetaZetas, LinearityFigures
from ..items.probes import ProbedRun
from ..items.sds_illustration import AlongFigures
from .finding import CONTRADICTED, HOLDS, INCONCLUSIVE, Finding, Judge, above_zero, over_tasks

EVERY = 0.95
"""The share of batches or epochs that must agree with a claim about every one."""


def every_batch(inequality: str) -> Judge:
    """Judge that an inequality holds in every batch, of every task."""

    def judged(run: ProbedRun) -> Finding:
        count = sum(map(len, next(iter(run.series.values())).values))
        return _every(run.workload.as_run, held(run, inequality)[0], count, "batches")

    return lambda result: over_tasks(map(judged, result.measured.runs))


def every_epoch(inequality: str) -> Judge:
    """Judge that an inequality holds in every epoch, by the means over its batches, on every task."""

    def judged(run: ProbedRun) -> Finding:
        return _every(run.workload.as_run, held(run, inequality)[1], len(run.epochs), "epochs")

    return lambda result: over_tasks(map(judged, result.measured.runs))


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
        return above_zero(gaps.mean, error, f"{run.workload.as_run}: {means} (n = {gaps.n} batches)")

    return lambda result: over_tasks(map(judged, result.measured.runs))


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


def _every(task: str, count: int, whole: int, what: str) -> Finding:
    told = f"{task}: {count} of {whole} {what}"
    if not whole:
        return Finding(INCONCLUSIVE, told, "nothing was finite")
    return Finding(HOLDS if count >= EVERY * whole else CONTRADICTED, told)
