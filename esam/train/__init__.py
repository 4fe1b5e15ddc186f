"""One training loop: for recipes, for comparisons, and for a user's own model and data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .config import Config

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, Progress
    from .evaluation import evaluate
    from .loop import cosine, fit
    from .runner import run
    from .task import Task

__all__ = ["Checkpoint", "Config", "Progress", "Task", "cosine", "evaluate", "fit", "run"]

_HOME = {
    "Checkpoint": "checkpoint",
    "Progress": "checkpoint",
    "Task": "task",
    "cosine": "loop",
    "evaluate": "evaluation",
    "fit": "loop",
    "run": "runner",
}


def __getattr__(name: str) -> Any:
    # on first use: `esam --help` reads Config and must not wait for torch
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
