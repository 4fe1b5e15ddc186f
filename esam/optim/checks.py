"""What may a setting be, and where does a warning point? Each check returns the value, or says what is allowed."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def checked_number(name: str, value: object) -> float:
    """Return a finite number >= 0."""
    if type(value) is float and 0 <= value < math.inf:  # every step asks
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value) or value < 0:
        remark = " (0 is the base optimizer itself)" if name.endswith("rho") else ""
        raise ValueError(f"{name} must be a finite number >= 0{remark}, got {value!r}")
    return float(value)


def checked_share(name: str, value: object) -> float:
    """Return a number in (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value!r}")
    return float(value)


def checked_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def checked_function(name: str, value: str | Function, known: Mapping[str, Function], what: str) -> Function:
    """Return the known function of that name, or the caller's own."""
    if isinstance(value, str) and value in known:
        return known[value]
    if not callable(value):
        raise ValueError(f"{name} must be one of {', '.join(known)} or a function {what}, got {value!r}")
    return value


def checked_count(name: str, value: object, of: str, *, least: int = 1) -> int:
    """Return a whole number >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of {of} >= {least}, got {value!r}")
    return int(value)


class GuidanceWarning(UserWarning):
    """Something makes sharpness-aware training worse than it could be; the message has the remedy."""


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, naming the first line outside this package and torch: schedulers and hooks wrap ``step``."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("esam", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
