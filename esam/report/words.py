"""How are measured numbers written, and how is a comparison put into sentences?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esam.report.summaries import MethodSummary, Spread

ABSENT = "–"


def measured(spread: Spread | None, *, seeds: int) -> str:
    """Write mean ± standard deviation with three significant digits of the mean: "0.0123 ± 0.0011"."""
    if spread is None:
        return ABSENT
    decimals = 0 if spread.mean == 0 else min(6, max(0, 2 - math.floor(math.log10(abs(spread.mean)))))
    return _with_spread(spread, decimals, seeds)


def percent(spread: Spread | None, *, seeds: int) -> str:
    """Write a share in per cent, without the sign: "93.12 ± 0.41"."""
    return ABSENT if spread is None else _with_spread(spread, 2, seeds, factor=100)


def _with_spread(spread: Spread, decimals: int, seeds: int, factor: int = 1) -> str:
    text = f"{factor * spread.mean:,.{decimals}f}"
    if spread.std is not None:
        text += f" ± {factor * spread.std:,.{decimals}f}"
    return text if spread.n == seeds else f"{text} (n = {spread.n})"


def mean(spread: Spread | None, write: Callable[[float], str]) -> str:
    """Write the mean alone, of what hardly differs between seeds."""
    return ABSENT if spread is None else write(spread.mean)


def counted(count: float) -> str:
    """Write a mean count: "40", "64.5", "12,345"."""
    return f"{count:,.1f}".removesuffix(".0")


def duration(seconds: float) -> str:
    """Write a time as people say it: "48 s", "2 min 30 s", "41 min", "3 h 05 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02d} min"


def memory(size: float) -> str:
    """Write bytes in the unit that leaves a readable number: "512 MiB", "1.50 GiB"."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


def sentences(methods: Sequence[MethodSummary]) -> str:
    """Say what the methods came to under one condition, and which of them did not fit their training data."""
    told = [(one, one.accuracy) for one in methods if one.accuracy is not None]
    lost = " ".join(_lost(one) for one in methods if any(run.diverged for run in one.group.unfinished))
    without = [_by_loss(one) for one in methods if one.accuracy is None and one.test_loss is not None]
    if not told and without:
        return " ".join([*without, *([lost] if lost else [])])
    if not told:
        return lost or "No run has finished yet."
    deviations = [accuracy.std for _, accuracy in told if accuracy.std is not None]
    decimals = 2 if min(deviations, default=1) < 0.0005 else 1  # "± 0.0" would look exact
    return " ".join([*(_sentence(one, accuracy, decimals) for one, accuracy in told), *([lost] if lost else [])])


def _by_loss(one: MethodSummary) -> str:
    """Say what a method came to whose targets are no classes."""
    assert one.test_loss is not None
    text = f"{one.name} reached a test loss of {measured(one.test_loss, seeds=one.test_loss.n)} (n = {one.test_loss.n})"
    base = None if one.is_base or one.base is None else one.base
    if base is not None and base.test_loss is not None and base.test_loss.mean:
        text += f", {one.test_loss.mean / base.test_loss.mean:.3g} times {base.name}'s"
        if one.time_ratio is not None:
            text += f", at {one.time_ratio:.2f}× {base.name}'s time"
    return f"{text}."


def _lost(one: MethodSummary) -> str:
    seeds = [str(run.seed) for run in one.group.unfinished if run.diverged]
    return f"{one.name} diverged with seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}."


def _sentence(one: MethodSummary, accuracy: Spread, decimals: int) -> str:
    text = f"{one.name} reached {100 * accuracy.mean:.{decimals}f} %"
    if accuracy.std is not None:
        text += f" ± {100 * accuracy.std:.{decimals}f}"
    text += f" (n = {accuracy.n})"
    base = None if one.is_base else one.base
    if base is not None:
        text += _difference(one, accuracy, base, decimals)
    if one.train_accuracy is not None and not one.fitted:
        text += f"; its training accuracy is {100 * one.train_accuracy.mean:.3g} %"
        if base is not None and base.train_accuracy is not None:
            text += f", {base.name}'s {100 * base.train_accuracy.mean:.3g} %"
        text += ": not fitted"
    return text + "."


def _difference(one: MethodSummary, accuracy: Spread, base: MethodSummary, decimals: int) -> str:
    text = ""
    if one.gain is not None and base.accuracy is not None:
        points = f"{abs(one.gain):.{decimals}f}"
        difference = f"+{points} points over" if one.gain >= 0 else f"{points} points under"
        text = f", {difference} {base.name}" if float(points) else f", level with {base.name}"
        deviations = [spread.std for spread in (accuracy, base.accuracy) if spread.std is not None]
        if float(points) and len(deviations) == 2 and abs(one.gain) <= 100 * max(deviations):
            text += " (within one standard deviation)"
    return text if one.time_ratio is None else f"{text}, at {one.time_ratio:.2f}× {base.name}'s time"
