"""How does a table of ready words look on a terminal, in Markdown and on a page?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LONG = 36
"""A cell with more characters than this may be broken into lines."""


@dataclass(frozen=True)
class Sheet:
    """A table whose cells are words already."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.head) for row in self.rows), self.title


def as_text(sheet: Sheet) -> str:
    """Give the table in columns of equal width: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(sheet.head, *sheet.rows, strict=True)]
    turn = [str.rjust if numbers else str.ljust for numbers in _numbers(sheet)]
    rule = ["-" * width for width in widths]
    lines = [[t(c, w) for t, c, w in zip(turn, line, widths, strict=True)] for line in (sheet.head, rule, *sheet.rows)]
    return "\n".join([sheet.title, *("  ".join(line).rstrip() for line in lines)])


def as_markdown(sheet: Sheet) -> str:
    """Give the table as Markdown."""
    rule = ["---:" if numbers else "---" for numbers in _numbers(sheet)]
    lines = [sheet.head, rule, *sheet.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_html(sheet: Sheet) -> str:
    """Give the table as HTML, in a box that scrolls where the screen is narrow."""
    kinds = ["" if numbers else ' class="words"' for numbers in _numbers(sheet)]
    head = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for kind, cell in zip(kinds, sheet.head, strict=True))
    body = "".join(_html_row(row, kinds) for row in sheet.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(sheet.title)}"><table class="results">'
        f"<caption>{escape(sheet.title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _html_row(row: Sequence[str], kinds: Sequence[str]) -> str:
    cells = ""
    for cell, kind in zip(row[1:], kinds[1:], strict=True):
        own = ' class="long"' if len(cell) >= LONG else kind
        cells += f"<td{own}>{escape(cell)}</td>"
    return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'


def _numbers(sheet: Sheet) -> list[bool]:
    """Tell which columns hold numbers alone."""
    return [all(map(_numeric, column)) for column in zip(*sheet.rows, strict=True)] or [False] * len(sheet.head)


def _numeric(cell: str) -> bool:
    return not cell or (cell[0] in "0123456789+-–." and not cell.endswith(("s", "h")))
