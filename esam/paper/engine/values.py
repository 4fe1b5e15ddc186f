"""How are measured values kept? As frozen dataclasses, and as JSON, where what is not finite is null."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from esam.files import write_atomically

FORMAT = 3
"""Of results; what an earlier version of this package measured may mean something else, and is made again."""
ABSENT = "–"
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Repeated:
    """A figure measured several times, over seeds or batches; None where it was not finite."""

    values: tuple[float | None, ...]

    @property
    def finite(self) -> list[float]:
        """The values that are finite."""
        return finite(self.values)

    @property
    def n(self) -> int:
        """How many of them there are."""
        return len(self.finite)

    @property
    def mean(self) -> float | None:
        """Their mean, None if there is none."""
        return mean_of(self.values)

    @property
    def std(self) -> float | None:
        """Their sample standard deviation, None where there are fewer than two."""
        return statistics.stdev(self.finite) if self.n > 1 else None

    @property
    def error(self) -> float | None:
        """The standard error of their mean, None where there are fewer than two."""
        return None if self.std is None else self.std / math.sqrt(self.n)

    def words(self, decimals: int) -> str:
        """Say mean ± standard deviation."""
        text = number(self.mean, decimals)
        return text if self.std is None else f"{text} ± {self.std:,.{decimals}f}"


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the numbers that are finite."""
    return [value for value in values if value is not None and math.isfinite(value)]


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the finite numbers, None if there is none."""
    found = finite(values)
    return statistics.fmean(found) if found else None


def number(value: float | None, decimals: int, *, sign: str = "", unit: str = "") -> str:
    """Say a number, or a dash where there is none."""
    return ABSENT if value is None else f"{value:{sign},.{decimals}f}{unit}"


def with_gaps(values: Iterable[float | None]) -> list[float]:
    """Return numbers to draw; a curve is interrupted where there is none."""
    return [math.nan if value is None else value for value in values]


def slug(text: str) -> str:
    """Turn words into part of a file's name: "ResNet-18, CIFAR-10" becomes "resnet-18-cifar-10"."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def encode(values: Any) -> bytes:
    """Return dataclasses as one line of JSON."""
    return msgspec.json.encode(values) + b"\n"


def remembered(path: Path, key: Any, kind: type[Kind], work: Callable[[], Kind]) -> Kind:
    """Return what was worked out before for this key, or work it out now and keep it in the file."""
    key = msgspec.to_builtins({"format": FORMAT, "key": key})
    kept = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    if kept.get("key") != key:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encode({"key": key, "values": work()}))
        kept = msgspec.json.decode(path.read_bytes())
    return msgspec.convert(kept["values"], kind)
