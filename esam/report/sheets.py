"""How does a table of ready words look on a terminal, in Markdown and on a page?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


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
    columns = [list(column) for column in zip(sheet.head, *sheet.rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    turn = [str.rjust if all(map(_numeric, column[1:])) else str.ljust for column in columns]
    rule = ["-" * width for width in widths]
    lines = [[t(c, w) for t, c, w in zip(turn, line, widths, strict=True)] for line in (sheet.head, rule, *sheet.rows)]
    return "\n".join([sheet.title, *("  ".join(line).rstrip() for line in lines)])


def as_markdown(sheet: Sheet) -> str:
    """Give the table as Markdown."""
    rule = ("---", *("---:" for _ in sheet.head[1:]))
    lines = [sheet.head, rule, *sheet.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_html(sheet: Sheet) -> str:
    """Give the table as HTML, in a box that scrolls where the screen is narrow."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in sheet.head)
    body = "".join(_html_row(row) for row in sheet.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(sheet.title)}"><table class="results">'
        f"<caption>{escape(sheet.title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _numeric(cell: str) -> bool:
    return not cell or cell[0] in "0123456789+-–."


def _html_row(row: Sequence[str]) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'
