"""How is a picture drawn and written? In one style, leaving matplotlib's global state as it is."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esam.files import write_atomically

METADATA: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}
"""By the endings that a picture may have: no dates, so that the same numbers give the same file."""
INK = "#39424d"
GRID = "#d9dee4"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5a6470",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "esam",
}


def write_picture(path: str | Path, draw: Callable[[Any], None], *, width: float, height: float) -> list[Path]:
    """Draw on a figure of this size in inches and return the files, each written whole or not at all.

    The path's ending decides the format; without one there are two files, .svg and .png.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"pictures need matplotlib ({error}); run: pip install torch-esam[analysis]") from error
    path = Path(path)
    ending = path.suffix.removeprefix(".").lower()
    if ending and ending not in METADATA and not ending.isdigit():  # digits: of a name such as beta-0.5
        raise ValueError(f"a picture ends in .{', .'.join(METADATA)}, got {path.name!r}")
    files = {ending: path} if ending in METADATA else {e: path.with_name(f"{path.name}.{e}") for e in ("svg", "png")}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        for kind, file in files.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=200, metadata=METADATA[kind], facecolor="white")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, buffer.getvalue())
    return list(files.values())
