"""How does a table of ready words look on a terminal, in Markdown and CSV? parts.html has it for a page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

GAP = 2
Form = Literal["table", "csv", "json", "md"]
"""How the command line can print results; JSON is made from figures, not from words."""


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
        return [bool(self.rows) and all(map(_numeric, cells)) for _, *cells in self.columns]

    @property
    def columns(self) -> list[tuple[str, ...]]:
        """The cells of each column, its head first."""
        return list(zip(self.head, *self.rows, strict=True))


def as_text(sheet: Sheet, width: int | None = None) -> str:
    """Give the table for a terminal; one that is wider than `width` in pieces that each begin with the first column."""
    columns = [_padded(column, numeric) for column, numeric in zip(sheet.columns, sheet.numeric, strict=True)]
    pieces = [columns[:1]]
    for column in columns[1:]:
        if width and len(pieces[-1]) > 1 and sum(GAP + cell_len(c[0]) for c in (*pieces[-1], column)) - GAP > width:
            pieces.append(columns[:1])
        pieces[-1].append(column)
    texts = []
    for piece in pieces:
        head, *rows = map((" " * GAP).join, zip(*piece, strict=True))
        texts.append("\n".join([head.rstrip(), "─" * cell_len(head), *map(str.rstrip, rows)]))
    text = "\n\n".join(texts)
    return f"{sheet.title}\n{text}" if sheet.title else text


def _padded(column: Sequence[str], numeric: bool) -> list[str]:
    """Return cells of one width: numbers turned right, words left."""
    width = max(map(cell_len, column))
    spaces = [" " * (width - cell_len(cell)) for cell in column]
    return [space + cell if numeric else cell + space for cell, space in zip(column, spaces, strict=True)]


def as_markdown(sheet: Sheet) -> str:
    """Give the table as Markdown."""
    rule = ["---:" if numbers else "---" for numbers in sheet.numeric]
    lines = [sheet.head, rule, *sheet.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_csv(sheet: Sheet) -> str:
    """Give the table as CSV, without its title."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([sheet.head, *sheet.rows])
    return text.getvalue().rstrip("\n")


def _numeric(cell: str) -> bool:
    """Whether a cell begins like a number and has no word but a unit: "1.5 ± 0.2", "2 min 30 s"; not "3 of 4 runs"."""
    return not cell or (cell[0] in "0123456789+-–." and not re.search(r"[^\W\d_]{4}", cell))
