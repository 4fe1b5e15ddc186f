"""How is a claim judged by what was measured? By rules, not opinions.

A claim that one accuracy is at least another's is judged by the mean difference over all tasks, and needs two seeds of
each: it holds when that is not negative, does not hold when it is so by more than two standard errors, and counts as
not tested in between: this scale cannot tell. A claim that something is greater holds when it is so by more than two
standard errors, does not hold when it is less by as much, and counts as not tested in between. A claim about speed is
judged by steps timed in turn: the whole interval of the measured ratio is above the paper's lowest figure, or below it,
or the claim is not tested. A claim about every batch or epoch holds when at least 95 % of them agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested at this scale"
EVERY = 0.95
"""The share of batches or epochs that must agree with a claim about every one."""
Finding = tuple[str, str]
"""What was measured, in words, and the verdict."""
Judge = Callable[[Mapping[str, Any]], Finding]
"""An item's measured values -> what they say of a claim."""


# Accuracy and speed --------------------------------------------------------------------------------------------------


def at_least(method: str, other: str) -> Judge:
    """Judge that a method's accuracy is at least another's, over all tasks."""

    def judge(values: Mapping[str, Any]) -> Finding:
        told, differences, errors, seeds = [], [], [], []
        for task, methods in values["tasks"].items():
            if method not in methods or other not in methods:
                continue
            mine, theirs = methods[method]["accuracy"], methods[other]["accuracy"]
            if mine["mean"] is None or theirs["mean"] is None:
                continue
            differences.append(mine["mean"] - theirs["mean"])
            error = standard_error(mine, theirs)
            errors.append(error)
            seeds.append(min(mine["n"], theirs["n"]))
            told.append(f"{_title(values, task)} {differences[-1]:+.2f}" + ("" if error is None else f" ± {error:.2f}"))
        known = [error for error in errors if error is not None]
        if not told:
            return "no runs", UNTESTED
        each = f"{'; '.join(told)} (points, n = {min(seeds)} seeds)"
        if len(known) < len(errors):
            return each, UNTESTED
        mean, error = statistics.fmean(differences), math.sqrt(sum(e**2 for e in known)) / len(known)
        whole = f"{mean:+.2f} ± {error:.2f} over all: " if len(known) > 1 else ""
        return whole + each, _verdict(mean, error, least=0)

    return judge


def faster(method: str, least: float) -> Judge:
    """Judge that a method's steps have this many times SAM's speed or more, on every task."""
    return _timed(method, "ratio", "interval", lambda low, high: (low >= least, high < least))


def costs(method: str, most: float) -> Judge:
    """Judge that a method's steps take at most this many times the base optimizer's time, on every task."""
    return _timed(method, "time", "time interval", lambda low, high: (high <= most, low > most))


def _timed(method: str, key: str, interval: str, sides: Callable[[float, float], tuple[bool, bool]]) -> Judge:
    """Judge by the whole interval of a ratio of times; ``sides`` tells whether it is on the right or the wrong side."""

    def judge(values: Mapping[str, Any]) -> Finding:
        told, verdicts, steps = [], [], []
        for task, methods in values["timed"].items():
            if method not in methods:
                continue
            ratio = methods[method][key]
            low, high = min(*methods[method][interval], ratio), max(*methods[method][interval], ratio)
            steps.append(methods[method]["n"])
            told.append(f"{_title(values, task)} {100 * ratio:.0f} % ({100 * low:.0f} to {100 * high:.0f})")
            right, wrong = sides(low, high)
            verdicts.append(HOLDS if right else FAILS if wrong else UNTESTED)
        if not told:
            return "no runs", UNTESTED
        return f"{'; '.join(told)} (n = {min(steps)} steps)", _worst(verdicts)

    return judge


def best_share(label: str, lowest: float, highest: float) -> Judge:
    """Judge that the best value of a parameter lies in an interval, on every task of the study."""

    def judge(values: Mapping[str, Any]) -> Finding:
        told, verdicts = [], []
        for task, methods in values["tasks"].items():
            found = {s: methods[f"{label} {s:g}"]["accuracy"] for s in values["shares"] if f"{label} {s:g}" in methods}
            known = {share: own for share, own in found.items() if own["mean"] is not None}
            if not known:
                continue
            best = max(known, key=lambda share: known[share]["mean"])
            n = min(own["n"] for own in known.values())
            told.append(f"{_title(values, task)}: best at {best:g} with {known[best]['mean']:.2f} % (n = {n})")
            if n > 1:  # one seed for each value orders them by chance
                verdicts.append(lowest <= best <= highest)
        return "; ".join(told) or "no runs", _all(verdicts)

    return judge


# Inside a batch ------------------------------------------------------------------------------------------------------


def every_batch(inequality: str) -> Judge:
    """Judge that an inequality holds in every batch, of every task."""

    def judge(values: Mapping[str, Any]) -> Finding:
        tasks = values["tasks"] if "tasks" in values else {values["task"]: values}
        told, verdicts = [], []
        for task, own in tasks.items():
            held, batches = own["held"][inequality], own["batches"]
            told.append(f"{_as_run(task)}: {held} of {batches} batches")
            if batches:
                verdicts.append(held >= EVERY * batches)
        return "; ".join(told), _all(verdicts)

    return judge


def every_epoch(inequality: str) -> Judge:
    """Judge that an inequality holds in every epoch, by the means over its batches, on every task."""

    def judge(values: Mapping[str, Any]) -> Finding:
        told, verdicts = [], []
        for task, own in values["tasks"].items():
            held, epochs = own["held in epochs"][inequality], len(own["epochs"])
            batches = f"{own['held'][inequality]} of {own['batches']} batches"
            told.append(f"{_as_run(task)}: {held} of {epochs} epochs, {batches}")
            if epochs:
                verdicts.append(held >= EVERY * epochs)
        return "; ".join(told), _all(verdicts)

    return judge


def higher_cosine(name: str, other: str) -> Judge:
    """Judge that the cosine of one set is above that of another, by the mean difference over batches, on every task."""

    def judge(values: Mapping[str, Any]) -> Finding:
        told, findings = [], []
        for task, own in values["tasks"].items():
            mine, theirs = own["overall"][name], own["overall"][other]
            pairs = zip(mine["values"], theirs["values"], strict=True)
            differences = [a - b for a, b in pairs if a is not None and b is not None]
            findings.append(_above_zero(differences))
            told.append(
                f"{_as_run(task)}: {mine['mean']:.3f} and {theirs['mean']:.3f} (n = {len(differences)} batches)"
            )
        return "; ".join(told), _worst(findings)

    return judge


def unbiased(values: Mapping[str, Any]) -> Finding:
    """Judge that SWP's mean perturbation is SAM's: no further from it than half as much again as chance explains."""
    every = values["expectation"]
    if not every:
        return "not measured", UNTESTED
    cosine = statistics.fmean(one["cosine"] for one in every)
    norm = statistics.fmean(one["norm"] for one in every)
    ratio = statistics.fmean(one["distance"] / one["expected distance"] for one in every)
    told = (
        f"cosine {cosine:.4f}, norm {norm:.4f} of SAM's, {ratio:.2f} times the distance that chance explains "
        f"({every[0]['draws']} masks for one gradient, n = {len(every)} epochs)"
    )
    return told, HOLDS if ratio <= 1.5 else FAILS


def more_linear(form: str) -> Judge:
    """Judge that zeta grows with beta: rank correlation of .8 or more; and that the smallest beta is below SAM."""

    def judge(values: Mapping[str, Any]) -> Finding:
        betas = values["betas"]
        means = [values["zeta"][form][f"{beta:g}"]["mean"] for beta in betas]
        if len(betas) < 3 or None in means:
            return "too few values of beta", UNTESTED
        order, sam = rank_correlation(betas, means), values["sam"]["mean"]
        told = (
            f"zeta {means[0]:.2e} at beta {betas[0]:g}, {means[-1]:.2e} at {betas[-1]:g}, SAM {sam:.2e}; "
            f"rank correlation with beta {order:+.2f} (n = {values['sam']['n']} batches)"
        )
        return told, HOLDS if order >= 0.8 and means[0] < sam else FAILS

    return judge


def fits(values: Mapping[str, Any]) -> Finding:
    """Judge g's form in both cases: it explains .95 or more of the variance, and its second term is there (k2 > 0).

    Where it explains less, it fails if the measurements are further from it than twice their errors explain.
    """
    told, verdicts = [], []
    for case, own in values.items():
        fit = own["fit"]
        told.append(
            f"{case}: k1 {fit['k1']:.3f}, k2 {fit['k2']:.3f} ± {fit['k2_error']:.3f}, R² {fit['r_squared']:.4f} "
            f"(n = {len(own['savings'])})"
        )
        off = [((one["saved"] - one["predicted"]) / one["error"]) ** 2 for one in own["savings"] if one["error"]]
        if fit["r_squared"] >= 0.95:
            verdicts.append(_verdict(fit["k2"], fit["k2_error"]))
        else:
            verdicts.append(FAILS if not off or sum(off) / len(off) > 2**2 else UNTESTED)
    return "; ".join(told), _worst(verdicts)


# Flatness ------------------------------------------------------------------------------------------------------------


def flatter(method: str, key: str) -> Judge:
    """Judge that a figure of a method's minimum is below that of SGD's."""

    def judge(values: Mapping[str, Any]) -> Finding:
        base = next((label for label in ("SGD", "AdamW") if label in values["methods"]), None)
        if base is None or method not in values["methods"]:
            return "no runs", UNTESTED
        mine, theirs = values["methods"][method][key], values["methods"][base][key]
        if mine["mean"] is None or theirs["mean"] is None:
            return "not finite", UNTESTED
        told = f"{_three(mine)} and {base} {_three(theirs)} (n = {mine['n']} seeds)"
        losses = [values["methods"][label].get("loss") for label in (method, base)]
        if all(losses):  # one that has not fitted its images is flat for that alone
            told += "; training loss {:.2g} and {:.2g}".format(*(loss["mean"] for loss in losses))
        return told, _greater(theirs, mine)

    return judge


# The parts of a verdict ----------------------------------------------------------------------------------------------


def standard_error(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Return the standard error of the difference of two means; None where either has one value alone."""
    if one["std"] is None or other["std"] is None:
        return None
    return math.sqrt(one["std"] ** 2 / one["n"] + other["std"] ** 2 / other["n"])


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Spearman's rank correlation of two lists without ties.

    >>> rank_correlation([1, 2, 3], [10, 30, 20])
    0.5
    """

    def ranks(values: Sequence[float]) -> list[int]:
        ordered = sorted(range(len(values)), key=lambda i: values[i])
        return [ordered.index(i) for i in range(len(values))]

    n = len(xs)
    apart = sum((a - b) ** 2 for a, b in zip(ranks(xs), ranks(ys), strict=True))
    return 1 - 6 * apart / (n * (n * n - 1))


def _title(values: Mapping[str, Any], task: str) -> str:
    """Return the task as it was run, without the paper's name for it."""
    return _as_run(values["titles"].get(task, task))


def _as_run(title: str) -> str:
    model, stands, rest = title.partition(" for ")
    return model if "," in model else f"{model}, {rest.partition(', ')[2]}" if stands else title


def _greater(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return _verdict(one["mean"] - other["mean"], standard_error(one, other))


def _verdict(difference: float, error: float | None, *, least: float | None = None) -> str:
    """Judge that a difference is above zero by two standard errors, or not below ``least``."""
    if error is None or math.isnan(error):
        return UNTESTED
    if difference > 2 * error or (least is not None and difference >= least):
        return HOLDS
    return FAILS if difference < -2 * error else UNTESTED


def _above_zero(differences: Sequence[float]) -> str:
    if len(differences) < 2:
        return UNTESTED
    return _verdict(statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences)))


def _all(verdicts: Sequence[bool]) -> str:
    if not verdicts:
        return UNTESTED
    return HOLDS if all(verdicts) else FAILS


def _worst(verdicts: Sequence[str]) -> str:
    return next((verdict for verdict in (FAILS, UNTESTED, HOLDS) if verdict in verdicts), UNTESTED)


def _three(values: Mapping[str, Any]) -> str:
    return f"{values['mean']:.3g}" + ("" if values["std"] is None else f" ± {values['std']:.2g}")
