"""One training loop: for recipes, for comparisons, and for a user's own model and data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .config import Config

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .evaluation import evaluate
    from .loop import cosine, fit
    from .resume import Progress
    from .runs import run
    from .task import Task

__all__ = ["Checkpoint", "Config", "Progress", "Task", "cosine", "evaluate", "fit", "run"]

_HOME = {
    "Checkpoint": "checkpoint",
    "Progress": "resume",
    "Task": "task",
    "cosine": "loop",
    "evaluate": "evaluation",
    "fit": "loop",
    "run": "runs",
}


def __getattr__(name: str) -> Any:
    # on first use: `esam --help` reads Config and must not wait for torch
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
