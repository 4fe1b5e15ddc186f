"""What should be changed where a method did not come to what it can?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from esam.optim import METHODS
from esam.report.summaries import MethodSummary

CLOSE = 1.0
"""Points of accuracy under the base from which on a fitted method is told to be tuned."""


def advice(methods: Sequence[MethodSummary]) -> list[str]:
    """Return a line for each method that did not fit its training data, or lost to the base though it did."""
    return [line for one in methods if (line := _line(one)) is not None]


def _line(one: MethodSummary) -> str | None:
    base = None if one.is_base else one.base
    if one.train_accuracy is not None and not one.fitted:
        share = f"{one.name} has fitted {100 * one.train_accuracy.mean:.3g} % of its training data"
        if base is None or not base.fitted:
            return f"{share}: it is at no minimum yet, flat or sharp. Train for more epochs, or a larger model."
        ways = " or ".join(["more epochs", *_ways(one), "another method"])
        return f"{share}, {base.name} all of it: it was not trained to the end. Try {ways}."
    if one.gain is not None and base is not None and one.gain < -CLOSE:
        ways = " or ".join([*_ways(one), "--tune 4, which finds rho on held-out training data"])
        return f"{one.name} is {-one.gain:.1f} points under {base.name} though it fits its training data. Try {ways}."
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


def _effective(one: MethodSummary) -> dict[str, Any]:
    run = one.group.runs[0]
    told = (run.run.get("effective") or {}).get("method")
    if told is None and one.group.method in METHODS:
        told = METHODS[one.group.method].effective(run.config.get("settings", {}))
    return dict(told or {})
