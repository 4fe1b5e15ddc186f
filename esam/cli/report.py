"""``esam report``: the records below a folder as one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .parsing import parse


@dataclass(frozen=True)
class ReportOptions:
    """The records below a folder as one self-contained HTML page."""

    folder: Path
    out: Path | None = None
    """Where to write the page; FOLDER/report.html if not given."""


def report(arguments: list[str]) -> None:
    """``esam report``: records to a page."""
    options = parse("report", ReportOptions, arguments)
    from esam.files import check_writable
    from esam.report.page import write_report

    if options.out is not None:
        check_writable(options.out)
    print(write_report(options.folder, options.out))
