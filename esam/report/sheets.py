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
    """Give the table in columns of equal width, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(sheet.head, *sheet.rows, strict=True)]
    lines = [_line(sheet.head, widths), "  ".join("-" * width for width in widths)]
    return "\n".join([sheet.title, *lines, *(_line(row, widths) for row in sheet.rows)])


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


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if number == 0 else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def _html_row(row: Sequence[str]) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'
