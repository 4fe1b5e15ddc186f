"""How do the finished items become one page that needs nothing else? Static pictures, no script."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .sheets import Sheet
from .templates import render, write_html

LARGE = 400_000
"""A vector picture of more bytes than this stands on the page as PNG."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Part:
    """One item on the page."""

    name: str
    number: str
    title: str
    sheets: Sequence[Sheet]
    pictures: Sequence[Path]
    """SVG files; the PNG beside a large one is taken instead."""
    notes: Sequence[str]


def write_page(path: Path, title: str, lead: str, parts: Sequence[Part], footer: str) -> Path:
    """Write one self-contained page with these parts; an earlier one stays until the new one is complete."""
    pictures = {picture: _data_url(picture) for part in parts for picture in part.pictures}
    told = {"title": title, "lead": lead, "footer": footer}
    return write_html(path, render("reproduction.html", policy=POLICY, parts=parts, pictures=pictures, **told))


def _data_url(path: Path) -> str:
    data, kind = path.read_bytes(), "svg+xml"
    small = path.with_suffix(".png")
    if len(data) > LARGE and small.exists() and small.stat().st_size < len(data):
        data, kind = small.read_bytes(), "png"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
