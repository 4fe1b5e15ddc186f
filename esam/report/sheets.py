"""How does a table of ready words look on a terminal, in Markdown, CSV and JSON? parts.html has it for a page."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

GAP = 2
Form = Literal["table", "csv", "json", "md"]


@dataclass(frozen=True)
class Sheet:
    """A table whose cells are words already."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.head) for row in self.rows), self.title

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers alone, which are turned right."""
        return [all(map(_numeric, column)) for column in zip(*self.rows, strict=True)] or [False] * len(self.head)


def as_text(sheet: Sheet, width: int | None = None) -> str:
    """Give the table for a terminal; one that is wider than `width` in pieces that each begin with the first column."""
    widths = [max(map(cell_len, column)) + GAP for column in zip(sheet.head, *sheet.rows, strict=True)]
    pieces = [[0]]
    for column in range(1, len(widths)):
        if width and len(pieces[-1]) > 1 and sum(widths[c] for c in (*pieces[-1], column)) - GAP > width:
            pieces.append([0])
        pieces[-1].append(column)
    console = Console(width=sum(widths), color_system=None, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        for number, piece in enumerate(pieces):
            if number:
                console.print()
            console.print(_piece(sheet, piece))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join([sheet.title, *lines] if sheet.title else lines)


def as_markdown(sheet: Sheet) -> str:
    """Give the table as Markdown."""
    rule = ["---:" if numbers else "---" for numbers in sheet.numeric]
    lines = [sheet.head, rule, *sheet.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_csv(sheet: Sheet) -> str:
    """Give the table as comma-separated values, without its title."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([sheet.head, *sheet.rows])
    return text.getvalue().rstrip("\n")


def as_rows(sheet: Sheet) -> list[dict[str, str | int | float]]:
    """Give each line by the heads of its columns, numbers as numbers: for JSON."""
    return [dict(zip(sheet.head, map(_value, row), strict=True)) for row in sheet.rows]


def formatted(sheets: Sequence[Sheet], form: Form, width: int | None = None) -> str:
    """Give tables as text in the form that was asked for; of several, CSV and Markdown have an empty line between."""
    if form == "json":
        parts = [{"title": sheet.title, "rows": as_rows(sheet)} for sheet in sheets]
        return json.dumps(parts, indent=1, ensure_ascii=False)
    if form == "csv":
        return "\n\n".join(map(as_csv, sheets))
    if form == "md":
        titled = [f"{sheet.title}\n\n{as_markdown(sheet)}" if sheet.title else as_markdown(sheet) for sheet in sheets]
        return "\n\n".join(titled)
    return "\n\n".join(as_text(sheet, width) for sheet in sheets)


def _value(cell: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _piece(sheet: Sheet, columns: list[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in columns:
        table.add_column(sheet.head[column], justify="right" if sheet.numeric[column] else "left", no_wrap=True)
    for row in sheet.rows:
        table.add_row(*(row[column] for column in columns))
    return table


def _numeric(cell: str) -> bool:
    """Whether a cell begins like a number and has no word but a unit: "1.5 ± 0.2", "2 min 30 s"; not "3 of 4 runs"."""
    return not cell or (cell[0] in "0123456789+-–." and not re.search(r"[^\W\d_]{4}", cell))
