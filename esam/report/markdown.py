"""How does a comparison look in a README or an issue?"""

from __future__ import annotations

from collections.abc import Sequence

from esam.report.table import Row, columns


def markdown_table(rows: Sequence[Row], titles: Sequence[str] | None = None) -> str:
    """Give the table as Markdown: the columns of these titles, or all of them."""
    shown = [column for column in columns(rows) if titles is None or column.title in titles]
    head = ["Method", *(column.title for column in shown)]
    lines = [head, ["---", *("---:" for _ in shown)]]
    lines += [[row.name, *(column.cell(row) for column in shown)] for row in rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
