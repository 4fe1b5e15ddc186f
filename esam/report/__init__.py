"""Run records in, one page out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esam.report.measured import Measured
    from esam.report.page import write_report
    from esam.report.results import answer_text
    from esam.report.summaries import MethodSummary, summarise

__all__ = ["Measured", "MethodSummary", "answer_text", "summarise", "write_report"]
_HOME = {"Measured": "measured", "answer_text": "results", "write_report": "page"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # on first use: a command's help needs a table's forms, and must not wait for torch
    return getattr(importlib.import_module(f".{_HOME.get(name, 'summaries')}", __name__), name)
