"""Where does a warning point? To the line of the caller's own code that took the step."""

from __future__ import annotations

import sys
import warnings


def warn_caller(message: str) -> None:
    """Warn, naming the first line outside this package and torch: schedulers and hooks wrap ``step``."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("esam", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
