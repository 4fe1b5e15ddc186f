"""What can be searched, and which run does a choice come to?

A word names a setting and its values: ``lr=0.01,0.05,0.1`` (these), ``rho=0.01..0.5:log`` (a range, by its logarithm),
``beta=0.2..1:0.2`` (a range in steps). Settings of the training and of the methods are named alike.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esam.compare.plan import Comparison, configured
from esam.optim import METHODS
from esam.train.config import Config, find_method
from esam.train.names import did_you_mean

TRAINING: dict[str, type] = {
    "method": str,
    "model": str,
    "optimizer": str,
    "lr": float,
    "momentum": float,
    "weight_decay": float,
    "schedule": str,
    "augment": str,
    "precision": str,
    "epochs": int,
    "batch_size": int,
    "train_size": int,
    "size": int,
}
"""Settings of the training that can be searched, by type."""
PAPER_GRID = ("lr=0.01,0.05,0.1,0.2", "weight_decay=0.0005,0.001", "batch_size=64,128,256")
"""The grid of the paper's appendix A.7."""


@dataclass(frozen=True)
class Dimension:
    """A setting, and the values that it may have."""

    name: str
    kind: type
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None

    def suggest(self, trial: Any) -> Any:
        """Return the value that a trial takes."""
        if self.values:
            return trial.suggest_categorical(self.name, list(self.values))
        if self.kind is int:
            return trial.suggest_int(self.name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)

    def points(self) -> tuple[Any, ...]:
        """Return the values of a grid."""
        if self.values:
            return self.values
        if self.step is None:
            raise ValueError(
                f"a grid needs the values of {self.name}: write {self.name}=0.1,0.2 or a range with a step"
            )
        count = int((self.high - self.low) / self.step + 1e-9) + 1
        return tuple(self.kind(self.low + number * self.step) for number in range(count))


@dataclass(frozen=True)
class Space:
    """Everything that is searched."""

    dimensions: tuple[Dimension, ...]

    def suggested(self, trial: Any, start: Comparison) -> Config:
        """Return the run that a trial chooses: the method first, then only what it has."""
        chosen: dict[str, Any] = {}
        for dimension in sorted(self.dimensions, key=lambda d: d.name != "method"):
            if self._applies(dimension, chosen.get("method", start.config.method)):
                chosen[dimension.name] = dimension.suggest(trial)
        return with_choice(start, chosen)

    def grid(self, start: Comparison) -> Iterator[dict[str, Any]]:
        """Give every point of the grid once; a setting that a method lacks makes no difference to it."""
        seen = []
        for point in itertools.product(*(dimension.points() for dimension in self.dimensions)):
            whole = dict(zip((d.name for d in self.dimensions), point, strict=True))
            method = whole.get("method", start.config.method)
            chosen = {d.name: whole[d.name] for d in self.dimensions if self._applies(d, method)}
            if chosen not in seen:
                seen.append(chosen)
                yield chosen

    def check(self, start: Comparison) -> None:
        """Refuse a setting that none of the methods has."""
        methods = next((d.values for d in self.dimensions if d.name == "method"), (start.config.method,))
        for method in methods:
            find_method(method)
        for dimension in self.dimensions:
            if not any(self._applies(dimension, method) for method in methods):
                raise ValueError(f"{dimension.name} is searched, and {', '.join(methods)} takes none; see esam methods")

    @staticmethod
    def _applies(dimension: Dimension, method: str) -> bool:
        row = find_method(method)
        own = dimension.name in row.options() and dimension.name not in row.settings
        return dimension.name in TRAINING or own


def with_choice(start: Comparison, chosen: Mapping[str, Any]) -> Config:
    """Return a trial's run: what is searched in place, all else as it was, judged on held-out training data."""
    config = configured(start, chosen.get("method", start.config.method), start.config.seed)
    fields = {name: value for name, value in chosen.items() if name in TRAINING}
    own = {name: value for name, value in chosen.items() if name not in TRAINING}
    return dataclasses.replace(config, **fields, settings={**config.settings, **own}, validation=True)


def read_space(words: Sequence[str]) -> Space:
    """Return the space that the words tell."""
    space = Space(tuple(map(_dimension, words)))
    names = [dimension.name for dimension in space.dimensions]
    if not names:
        raise ValueError("a search needs settings to search: write --search lr=0.01..1:log rho=0.05,0.1")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]} is searched twice; give all its values in one word")
    return space


def _dimension(word: str) -> Dimension:
    name, equals, told = word.partition("=")
    kinds = _kinds()
    if not equals or not told:
        raise ValueError(f"--search takes setting=values, such as lr=0.01,0.1 or rho=0.01..0.5:log, got {word!r}")
    if name not in kinds:
        raise ValueError(f"there is no setting {name!r} to search.{did_you_mean(name, kinds)}")
    kind = kinds[name]
    try:
        if ".." not in told:
            return Dimension(name, kind, values=tuple(kind(value) for value in told.split(",")))
        span, _, how = told.partition(":")
        low, high = (kind(end) for end in span.split(".."))
        step = None if how in ("", "log") else kind(how)
    except ValueError as error:
        raise ValueError(f"{word!r} is no range or list of values of type {kind.__name__} ({error})") from error
    if kind is str or not low < high or (how == "log" and low <= 0) or (step is not None and step <= 0):
        raise ValueError(
            f"{word!r}: a range is of numbers, from the lower to the higher, above 0 where it is log or has a step"
        )
    return Dimension(name, kind, low=low, high=high, log=how == "log", step=step)


def _kinds() -> dict[str, type]:
    return {**{name: kind for row in METHODS.values() for name, kind in row.options().items()}, **TRAINING}
