"""Which runs make up a comparison, and where does each one live?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from esam.files import write_atomically
from esam.train.config import Config, find_method
from esam.train.history import ALIASES
from esam.train.names import did_you_mean
from esam.train.record import RECORD_NAME, RunRecord, read_first_line, read_record

CONFIG_NAME = "config.json"
DEFAULT_METHODS = ("base", "sam", "esam", "slicesam")
"""What is compared where nobody says: the base, what costs twice as much, and what costs less."""


@dataclass(frozen=True)
class PlannedRun:
    """A configuration and the folder that its configuration alone decides, so that equal runs are shared."""

    config: Config
    folder: Path
    worker: str = "esam.compare.worker"
    """The module whose process runs it."""

    def record(self) -> RunRecord | None:
        """Return what the run has recorded so far."""
        path = self.folder / RECORD_NAME
        return read_record(path) if path.exists() else None

    def prepare(self) -> None:
        """Write the configuration where the run's own process will read it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / CONFIG_NAME, json.dumps(self.config.as_json(), indent=1).encode())


@dataclass(frozen=True)
class Comparison:
    """Methods and seeds that share one configuration: the same data, order, initial weights and budget for each."""

    config: Config
    methods: tuple[str, ...] = DEFAULT_METHODS
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What differs for a method, as in ``{"sam": {"rho": 0.1}}``."""
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a search tried and chose for a method: told in its records."""


def plan(comparison: Comparison, folder: str | Path) -> list[PlannedRun]:
    """Return one run for each seed and method, seed by seed, so that whole comparisons come first."""
    if not comparison.methods or not comparison.seeds:
        raise ValueError(
            "a comparison needs methods and seeds (--methods, --seeds), got "
            f"{[*comparison.methods]} and {[*comparison.seeds]}"
        )
    for method, own in comparison.settings.items():
        _check_own(method, own)
    configs = [configured(comparison, method, seed) for seed in comparison.seeds for method in comparison.methods]
    runs = [PlannedRun(config, folder_of(config, folder)) for config in configs]
    return list({run.folder: run for run in runs}.values())


def configured(comparison: Comparison, method: str, seed: int) -> Config:
    """Return the configuration of one run.

    A common setting reaches the methods that have it, unless it is what makes the method: esam-swp is ESAM with gamma
    = 1, whatever gamma the others have. What is given for a method by name goes before both.
    """
    row = find_method(method)
    names = {ALIASES.get(name, name): own for name, own in comparison.settings.items()}
    own = dict(names.get(ALIASES.get(method, method), {}))
    common = {k: v for k, v in comparison.config.settings.items() if k in row.options() and k not in row.settings}
    settings = {**common, **{name: own.pop(name) for name in list(own) if name in row.options()}}
    tuned = comparison.tuned.get(method, {})
    return dataclasses.replace(comparison.config, method=method, seed=seed, settings=settings, tuned=tuned, **own)


def folder_of(config: Config, place: str | Path) -> Path:
    """Return the folder of a run in a place: where a record of the same run is, or where a new one goes."""
    place, name = Path(place), f"{config.method}-seed{config.seed}-{config.id()}"
    if (place / name).exists() or not place.is_dir():
        return place / name
    return _known(place, place.stat().st_mtime_ns).get(config.id(), place / name)


@lru_cache(maxsize=64)
def _known(place: Path, changed: int) -> dict[str, Path]:
    """Return the folders of recorded runs by their identities: earlier versions named them in other ways."""
    found = {}
    for path in sorted(place.glob(f"*/{RECORD_NAME}")):
        with suppress(ValueError):  # a broken record, or one of settings that this version does not have
            line = read_first_line(path)
            if not line.get("extended"):  # a learning rate that rose again is not that of so many epochs from the start
                found[Config.from_json(line["config"]).id()] = path.parent
    return found


def _check_own(method: str, given: Mapping[str, Any]) -> None:
    known = {f.name for f in dataclasses.fields(Config)} - {"method", "seed", "settings", "tuned"} | {
        *find_method(method).options()
    }
    for name in given:
        if name not in known:
            raise ValueError(f"{method} has no setting {name!r} of its own.{did_you_mean(name, known)}")
