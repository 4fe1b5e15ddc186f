"""What is an item: a table or figure of the paper that can be made again?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esam.compare.plan import Comparison
from esam.report.sheets import Sheet
from esam.train.config import Config

from .scale import Look, Scale

if TYPE_CHECKING:
    from .store import Found

Values = dict[str, Any]
"""An item's results as plain JSON values."""


@dataclass(frozen=True)
class Row:
    """One line of a table: a method on a task, over its seeds."""

    task: str
    label: str
    """The method as people read it: "ESAM"."""
    comparison: Comparison
    """Of this method alone."""


@dataclass(frozen=True)
class Needs:
    """What an item is made from at one scale."""

    rows: tuple[Row, ...] = ()
    """Their records."""
    weights: tuple[Row, ...] = ()
    """Their trained weights too."""
    observed: tuple[Row, ...] = ()
    """Runs that are looked into while they train."""
    look: Look | None = None
    passes: tuple[tuple[Config, float], ...] = ()
    """Forward passes of single images that the analysis takes, by the model that takes them."""
    flops: float = 0.0
    """Other operations of the analysis."""
    sizes: dict[str, Any] = field(default_factory=dict)
    """What else a plan should say."""


@dataclass(frozen=True)
class Item:
    """A table or figure: what it needs, how it is worked out, shown and drawn."""

    name: str
    number: str
    """Where it stands in the paper."""
    title: str
    needs: Callable[[Scale], Needs]
    analyse: Callable[[Found], Values]
    sheets: Callable[[Values], Sequence[Sheet]]
    draw: Callable[[Values, Path], list[Path]]
    """(measured values, path without an ending) -> the files written."""
    paper: Values = field(default_factory=dict)
    """The paper's own numbers, as plain JSON values."""
    notes: tuple[str, ...] = ()
    """What a reader must know to compare."""
