"""How does a table of ready words look on a terminal, in Markdown, CSV and JSON? parts.html has it for a page."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

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
    lines = [sheet.head, *sheet.rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    pieces = [[0]]
    for column in range(1, len(widths)):
        if width and len(pieces[-1]) > 1 and sum(GAP + widths[c] for c in (*pieces[-1], column)) - GAP > width:
            pieces.append([0])
        pieces[-1].append(column)
    texts = []
    for piece in pieces:
        head, *rows = ((" " * GAP).join(_padded(line, widths, sheet.numeric, piece)).rstrip() for line in lines)
        texts.append("\n".join([head, "─" * (sum(GAP + widths[c] for c in piece) - GAP), *rows]))
    text = "\n\n".join(texts)
    return f"{sheet.title}\n{text}" if sheet.title else text


def _padded(line: Sequence[str], widths: list[int], numeric: list[bool], columns: list[int]) -> Iterator[str]:
    for column in columns:
        space = " " * (widths[column] - cell_len(line[column]))
        yield space + line[column] if numeric[column] else line[column] + space


def as_markdown(sheet: Sheet) -> str:
    """Give the table as Markdown."""
    rule = ["---:" if numbers else "---" for numbers in sheet.numeric]
    lines = [sheet.head, rule, *sheet.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def formatted(sheets: Sequence[Sheet], form: Form, width: int | None = None) -> str:
    """Give tables as text in the form that was asked for; of several, CSV and Markdown have an empty line between.

    CSV has no titles; JSON has each line by the heads of its columns, numbers as numbers.
    """
    if form == "json":
        rows = [[dict(zip(sheet.head, map(_value, row), strict=True)) for row in sheet.rows] for sheet in sheets]
        parts = [{"title": sheet.title, "rows": found} for sheet, found in zip(sheets, rows, strict=True)]
        return json.dumps(parts, indent=1, ensure_ascii=False)
    if form == "csv":
        return "\n\n".join(map(_csv, sheets))
    if form == "md":
        return "\n\n".join(text for sheet in sheets for text in (sheet.title, as_markdown(sheet)) if text)
    return "\n\n".join(as_text(sheet, width) for sheet in sheets)


def _csv(sheet: Sheet) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([sheet.head, *sheet.rows])
    return text.getvalue().rstrip("\n")


def _value(cell: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _numeric(cell: str) -> bool:
    """Whether a cell begins like a number and has no word but a unit: "1.5 ± 0.2", "2 min 30 s"; not "3 of 4 runs"."""
    return not cell or (cell[0] in "0123456789+-–." and not re.search(r"[^\W\d_]{4}", cell))
