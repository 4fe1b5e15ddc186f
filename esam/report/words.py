"""How are measured numbers written, and how is a comparison put into a sentence?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esam.report.table import Row, Spread

ABSENT = "–"


def measured(spread: Spread | None, *, row_n: int) -> str:
    """Write mean ± standard deviation with three significant digits of the mean: "0.0123 ± 0.0011"."""
    if spread is None:
        return ABSENT
    decimals = 0 if spread.mean == 0 else min(6, max(0, 2 - math.floor(math.log10(abs(spread.mean)))))
    return _with_spread(spread, decimals, row_n)


def percent(spread: Spread | None, *, row_n: int) -> str:
    """Write a share in per cent, without the sign: "93.12 ± 0.41"."""
    return ABSENT if spread is None else _with_spread(spread.scaled(100), 2, row_n)


def _with_spread(spread: Spread, decimals: int, row_n: int) -> str:
    text = f"{spread.mean:,.{decimals}f}"
    if spread.std is not None:
        text += f" ± {spread.std:,.{decimals}f}"
    return text if spread.n == row_n else f"{text} (n = {spread.n})"


def duration(seconds: float) -> str:
    """Write a time as people say it: "48 s", "2 min 30 s", "41 min", "3 h 05 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02d} min"


def memory(size: float) -> str:
    """Write bytes in the unit that leaves a readable number: "512 MiB", "1.50 GiB"."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


def joined(names: Sequence[str]) -> str:
    """Join names as in a sentence: "SGD, SAM and ESAM"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1] if names else ""]))


def summary(rows: Sequence[Row]) -> str:
    """Say what the runs of one condition came to, in one paragraph of plain sentences."""
    base = next((row for row in rows if row.is_base), None)
    told = sorted((row for row in rows if row.accuracy is not None), key=lambda row: not row.is_base)
    if not told:
        return "No run has finished yet."
    deviations = [row.accuracy.std for row in told if row.accuracy is not None and row.accuracy.std is not None]
    decimals = 2 if min(deviations, default=1) < 0.0005 else 1  # "± 0.0" would look exact
    return " ".join(_sentence(row, base, decimals) for row in told)


def counted(spread: Spread | None) -> str:
    """Write a mean count, which hardly differs between seeds: "40", "64.5", "12,345"."""
    return ABSENT if spread is None else f"{spread.mean:,.1f}".removesuffix(".0")


def _sentence(row: Row, base: Row | None, decimals: int) -> str:
    accuracy = row.accuracy
    assert accuracy is not None
    text = f"{row.name} reached {100 * accuracy.mean:.{decimals}f} %"
    if accuracy.std is not None:
        text += f" ± {100 * accuracy.std:.{decimals}f}"
    text += f" (n = {accuracy.n})"
    if base is not None and row is not base:
        text += _against(row, base, decimals)
    return text + "."


def _against(row: Row, base: Row, decimals: int) -> str:
    text = ""
    if row.gain is not None and row.accuracy is not None and base.accuracy is not None:
        points = f"{abs(row.gain):.{decimals}f}"
        difference = f"+{points} points over" if row.gain >= 0 else f"{points} points under"
        text = f", {difference} {base.name}" if float(points) else f", level with {base.name}"
        deviations = [spread.std for spread in (row.accuracy, base.accuracy) if spread.std is not None]
        if float(points) and len(deviations) == 2 and abs(row.gain) <= 100 * max(deviations):
            text += " (within one standard deviation)"
    return text if row.time_ratio is None else f"{text}, at {row.time_ratio:.2f}× {base.name}'s time"
