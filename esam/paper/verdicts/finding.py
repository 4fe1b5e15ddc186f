"""What does a judgement consist of, and what do all of them share?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..engine.store import Result
from ..engine.values import Repeated

HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_RUN = "holds", "contradicted", "inconclusive", "not run"


@dataclass(frozen=True)
class Finding:
    """A verdict, what was measured, and why it cannot be told where that is so."""

    verdict: str
    measured: str
    why: str = ""


Judge = Callable[[Result[Any]], Finding]
"""An item's result -> what it says of a claim."""


def difference(one: Repeated, other: Repeated) -> tuple[float | None, float | None]:
    """Return the difference of two means, and its standard error where both have two values or more."""
    gap = None if one.mean is None or other.mean is None else one.mean - other.mean
    if one.std is None or other.std is None:
        return gap, None
    return gap, math.sqrt(one.std**2 / one.n + other.std**2 / other.n)


def above_zero(gap: float | None, error: float | None, measured: str, *, what: str = "the difference") -> Finding:
    """Judge that a difference is above zero by more than two standard errors."""
    if gap is None:
        return Finding(INCONCLUSIVE, measured, "not finite")
    if error is None:
        return Finding(INCONCLUSIVE, measured, "one value has no spread")
    if abs(gap) <= 2 * error:
        return Finding(INCONCLUSIVE, measured, f"{what} is within two standard errors of zero")
    return Finding(HOLDS if gap > 0 else CONTRADICTED, measured)


def over_tasks(each: Iterable[Finding]) -> Finding:
    """Return the findings of several tasks as one."""
    findings = list(each)
    verdict = next(v for v in (CONTRADICTED, INCONCLUSIVE, HOLDS) if any(one.verdict == v for one in findings))
    whys = dict.fromkeys(one.why for one in findings if one.verdict == verdict)
    return Finding(verdict, "; ".join(one.measured for one in findings), "; ".join(whys))


def plus_minus(value: float | None, error: float | None, decimals: int = 2, *, sign: str = "+") -> str:
    """Say a number, and its error where there is one."""
    text = "not finite" if value is None else f"{value:{sign}.{decimals}f}"
    return text if error is None else f"{text} ± {error:.{decimals}f}"


def three(values: Repeated) -> str:
    """Say mean and standard deviation by three digits."""
    if values.mean is None:
        return "not finite"
    return f"{values.mean:.3g}" + ("" if values.std is None else f" ± {values.std:.2g}")
