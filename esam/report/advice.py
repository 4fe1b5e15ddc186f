"""What should be changed where a method did not come to what it can?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from esam.optim import METHODS
from esam.report.summaries import MethodSummary
from esam.train.record import RunRecord

CLOSE = 1.0
"""Points of accuracy under the base from which on a method is warned of."""
CLOSE_LOSS = 1.05
"""Times the base's test loss from which on it is, where the targets are no classes."""
FEW_STEPS = 500
"""With fewer, a run is short whatever the number of its epochs."""
FEW_SAMPLES = 8
"""A part of a batch that is smaller says little of the batch's gradient."""


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a method's result, in a word and in a line that ends with what to change."""

    name: str
    word: Literal["diverged", "under-fits", "behind"]
    line: str


def advice(methods: Sequence[MethodSummary]) -> list[str]:
    """Return a line for each method that diverged, did not fit its training data, or lost to the base though it did."""
    return [verdict.line for verdict in verdicts(methods)]


def verdicts(methods: Sequence[MethodSummary]) -> list[Verdict]:
    """Return what is wrong with the methods' results, a verdict for each at most."""
    return [verdict for one in methods if (verdict := _verdict(one)) is not None]


def _verdict(one: MethodSummary) -> Verdict | None:
    base = None if one.is_base else one.base
    lost = [run for run in one.group.unfinished if run.diverged]
    if lost:
        ways = _or([f"a lower lr (now {_lr(lost[0]):g})", *_ways(one)])
        told = f"{one.name} diverged with {len(lost)} of {one.n + len(lost)} seeds: its loss ceased to be a number."
        return Verdict(one.name, "diverged", f"{told} Try {ways}.")
    if one.train_accuracy is not None and not one.fitted:
        share = f"{one.name} has fitted {100 * one.train_accuracy.mean:.3g} % of its training data"
        if base is None or not base.fitted:
            short = _short(one) or "it is at no minimum yet, flat or sharp"
            line = f"{share}: {short}. Train for more epochs, or a larger model."
        else:
            ways = _or(["more epochs", *_ways(one), "another method"])
            why = "; ".join(filter(None, ["it was not trained to the end", _short(one), _outside(one)]))
            line = f"{share}{_share(base)}: {why}. Try {ways}."
        return Verdict(one.name, "under-fits", line)
    behind = None if base is None else _behind(one, base)
    if behind is None:
        return None
    why = "; ".join(filter(None, [_short(one), _outside(one)]))
    search = (
        []
        if any(run.config.get("tuned") for run in one.group.runs)
        else ["--tune 4, which finds rho on held-out training data"]
    )
    ways = _or([*_ways(one), *(search or ["another method"])])
    return Verdict(one.name, "behind", f"{behind}{f': {why}' if why else ''}. Try {ways}.")


def _share(base: MethodSummary) -> str:
    """Say how much of the training data the base has fitted."""
    if base.train_accuracy is None:
        return ""
    percent = 100 * base.train_accuracy.mean
    return f", {base.name} all of it" if percent > 99.95 else f", {base.name} {percent:.3g} %"


def _behind(one: MethodSummary, base: MethodSummary) -> str | None:
    """Say by how much a method lost to the base; None where it did not, or by little."""
    if one.gain is not None:
        if one.gain >= -CLOSE:
            return None
        fits = "" if one.train_accuracy is None else " though it fits its training data"
        told = f"{one.name} is {-one.gain:.1f} points under {base.name}{fits}"
        spreads = [each.std for each in (one.accuracy, base.accuracy) if each is not None and each.std is not None]
        within = len(spreads) == 2 and -one.gain <= 100 * max(spreads)
        return f"{told}, by no more than seeds differ (more seeds would tell)" if within else told
    if one.test_loss is None or base.test_loss is None or one.test_loss.mean <= CLOSE_LOSS * base.test_loss.mean:
        return None
    return f"{one.name} has {one.test_loss.mean / base.test_loss.mean:.3g} times {base.name}'s test loss"


def _short(one: MethodSummary) -> str | None:
    """Say that a run was short, where it took few steps."""
    run = one.group.runs[0]
    samples, size, epochs = ((run.data or {}).get("train"), *(run.config.get(key) for key in ("batch_size", "epochs")))
    if not samples or not size or not epochs or run.config.get("budget") is not None:
        return None
    steps = epochs * math.ceil(samples / size)
    return f"{epochs} epochs are but {steps} steps here" if steps < FEW_STEPS else None


def _outside(one: MethodSummary) -> str | None:
    """Say that a method is used outside the range that it is made for."""
    run, settings = one.group.runs[0], _effective(one)
    if run.config.get("label_noise") and settings.get("ranking") == "exact" and settings.get("gamma", 1) < 1:
        return "where labels are wrong, its ranking keeps those first"
    share, size = settings.get("share"), run.config.get("batch_size")
    if one.group.method == "slicesam" and share and size and share * size < FEW_SAMPLES:
        return (
            f"its correction is that of {max(1, round(share * size))} samples of each batch; a larger batch gives more"
        )
    search = run.config.get("tuned") or {}
    tried = sorted({trial["rho"] for trial in search.get("trials", []) if "rho" in trial})
    if len(tried) > 1 and search["chosen"].get("rho") in (tried[0], tried[-1]):
        end = "smallest" if search["chosen"]["rho"] == tried[0] else "largest"
        return f"its rho is the {end} that was tried"
    return None


def _ways(one: MethodSummary) -> list[str]:
    """Return settings of the method that would bring it nearer to the base."""
    settings = _effective(one)
    ways = []
    if isinstance(settings.get("gamma"), float) and settings["gamma"] < 1:
        ways.append(f"gamma 1, with which all samples train (now {settings['gamma']:g})")
    if isinstance(settings.get("rho"), (int, float)) and settings["rho"] > 0:
        ways.append(f"a smaller rho (now {settings['rho']:g})")
    return ways


def _or(ways: Sequence[str]) -> str:
    return " or ".join(ways)


def _lr(run: RunRecord) -> float:
    return float(run.config.get("lr") or math.nan)


def _effective(one: MethodSummary) -> dict[str, Any]:
    run = one.group.runs[0]
    told = (run.run.get("effective") or {}).get("method")
    if told is None and one.group.method in METHODS:
        told = METHODS[one.group.method].effective(run.config.get("settings", {}))
    return dict(told or {})
