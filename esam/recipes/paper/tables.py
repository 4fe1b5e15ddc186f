"""What do the paper's tables of accuracy and speed have in common? All but their runs, words and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from esam.reproduce.item import Item, Needs
from esam.reproduce.scale import Scale, Task

from .common import Printed, accuracy_sheet, draw_bars, printed_json
from .timing import table_values


def table_item(
    name: str,
    number: str,
    title: str,
    *,
    heading: str,
    needs: Callable[[Scale], Needs],
    paper: Mapping[Task, Mapping[str, Printed]],
    notes: tuple[str, ...],
) -> Item:
    """Return a table: accuracy and speed by task and method, the paper's numbers beside ours, drawn as bars."""
    printed = printed_json(paper)
    return Item(
        name=name,
        number=number,
        title=title,
        needs=needs,
        analyse=table_values,
        sheets=lambda measured: [accuracy_sheet(heading, measured, printed)],
        draw=draw_bars,
        paper=printed,
        notes=notes,
    )
