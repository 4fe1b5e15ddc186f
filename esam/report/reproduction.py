"""How do the finished items become one page that needs nothing else? Static pictures, no script."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from esam.files import write_atomically

from .sheets import Sheet, as_html

LARGE = 400_000
"""A vector picture of more bytes than this stands on the page as PNG."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
EXTRA_STYLE = """
figure.picture { margin: 20px 0; padding: 12px; background: #fff; border: 1px solid var(--line); }
figure.picture img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
nav ul { columns: 2; padding-left: 20px; }
.results td { white-space: nowrap; }
.results .words { text-align: left; }
.results td.long { text-align: left; white-space: normal; min-width: 26em; }
"""


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
    contents = "".join(
        f'<li><a href="#{escape(part.name)}">{escape(part.number)}: {escape(part.title)}</a></li>' for part in parts
    )
    style = files("esam.report").joinpath("report.css").read_text(encoding="utf-8") + EXTRA_STYLE
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f'<header><h1>{escape(title)}</h1><div class="lead"><p>{escape(lead)}</p></div>'
        f"<nav><ul>{contents}</ul></nav></header>\n"
        f"{''.join(map(_part, parts))}<footer>{escape(footer)}</footer>\n</main>\n</body>\n</html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode(errors="replace"))
    return path


def _part(part: Part) -> str:
    notes = "".join(f"<p>{escape(note)}</p>" for note in part.notes)
    remarks = f'<aside class="remarks" role="note" aria-label="Remarks">{notes}</aside>' if notes else ""
    tables = "".join(map(as_html, part.sheets))
    pictures = "".join(_picture(path, f"{part.number}: {part.title}") for path in part.pictures)
    heading = f"{escape(part.number)}: {escape(part.title)}"
    return f'<section id="{escape(part.name)}"><h2>{heading}</h2>{tables}{pictures}{remarks}</section>\n'


def _picture(path: Path, words: str) -> str:
    data, kind = path.read_bytes(), "svg+xml"
    small = path.with_suffix(".png")
    if len(data) > LARGE and small.exists() and small.stat().st_size < len(data):
        data, kind = small.read_bytes(), "png"
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return f'<figure class="picture"><img alt="{escape(words)}: {escape(path.stem)}" src="{source}"></figure>'
