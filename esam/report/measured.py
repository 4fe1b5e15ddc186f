"""How is a measurement over seeds kept, compared and written?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

ABSENT = "–"
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 15: 2.13, 20: 2.09}
"""Student's t by its degrees of freedom: 95 % of a sample's means lie within so many standard errors."""
NORMAL95 = 1.96


@dataclass(frozen=True)
class Measured:
    """A measurement over seeds: mean, sample standard deviation (None for a single seed) and the number of seeds."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Measured | None:
        """Measure the values that are known; None where none is."""
        known = [float(value) for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))

    def times(self, factor: float) -> Measured:
        """Return the same in another unit: a share in per cent."""
        return Measured(factor * self.mean, None if self.std is None else abs(factor) * self.std, self.n)

    def format(self, *, seeds: int | None = None, decimals: int | None = None) -> str:
        """Write "0.0123 ± 0.0011": three significant digits of the mean, or so many decimals.

        The number of seeds is written where it is not ``seeds``, which the reader knows.
        """
        if decimals is None:
            decimals = 0 if self.mean == 0 else min(6, max(0, 2 - math.floor(math.log10(abs(self.mean)))))
        mean = round(self.mean, decimals) + 0.0  # never "-0.0"
        text = f"{mean:,.{decimals}f}" + ("" if self.std is None else f" ± {self.std:,.{decimals}f}")
        return text if seeds in (None, self.n) else f"{text} (n = {self.n})"


@dataclass(frozen=True)
class Difference:
    """A difference of two means with the half width of its 95 % interval (Welch's t)."""

    value: float
    half_width: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.value) > self.half_width

    def format(self) -> str:
        """Write "+1.5 (+0.2 to +2.8)"."""
        return f"{self.value:+.1f} ({self.value - self.half_width:+.1f} to {self.value + self.half_width:+.1f})"


def difference(x: Measured | None, y: Measured | None) -> Difference | None:
    """Return how far the mean of x lies above that of y; None unless both were measured with two seeds or more."""
    if x is None or y is None or x.std is None or y.std is None:
        return None
    a, b = x.std**2 / x.n, y.std**2 / y.n
    freedom = (a + b) ** 2 / (a**2 / (x.n - 1) + b**2 / (y.n - 1)) if a + b else math.inf
    # of the next lower entry of the table, so never too small
    t95 = NORMAL95 if freedom > 60 else max((n, t) for n, t in T95.items() if n <= max(1, freedom + 1e-9))[1]
    return Difference(x.mean - y.mean, t95 * math.sqrt(a + b))


def written(
    measured: Measured | None, *, seeds: int | None = None, factor: float = 1, decimals: int | None = None
) -> str:
    """Write a measurement times a factor, as ``format`` does, or a dash where there is none."""
    return ABSENT if measured is None else measured.times(factor).format(seeds=seeds, decimals=decimals)


def duration(seconds: float) -> str:
    """Write a time as people say it: "48 s", "2 min 30 s", "41 min", "3 h 05 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02d} min"


def memory(size: float) -> str:
    """Write bytes in the unit that leaves a readable number: "512 MiB", "1.50 GiB"."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
