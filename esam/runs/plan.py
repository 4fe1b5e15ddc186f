"""Which runs make up a comparison, and in which folder is each one?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esam.files import write_atomically
from esam.train.config import Config, did_you_mean, find_method
from esam.train.record import RECORD_NAME, RunRecord, read_record

CONFIG_NAME, LOG_NAME = "config.json", "log.txt"
SEED = 100
"""Of a search's trials: a comparison's own seeds are likely to be others."""
DEFAULT_METHODS = ("base", "sam", "esam", "slicesam")
"""Compared by default: the base, SAM at twice its cost, and two methods that cost less."""


@dataclass(frozen=True)
class PlannedRun:
    """A configuration and its folder; equal configurations share a folder, and so a result."""

    config: Config
    folder: Path
    worker: str = "esam.runs.worker"
    """The module whose ``main(folder)`` does the run."""
    label: str = field(default="", compare=False)
    """What progress lines call it, if not method and seed."""

    @property
    def name(self) -> str:
        """What progress lines call it: "sam, seed 0"."""
        return self.label or f"{self.config.method}, seed {self.config.seed}"

    def record(self) -> RunRecord | None:
        """Return what the run has recorded so far."""
        path = self.folder / RECORD_NAME
        return read_record(path) if path.exists() else None

    @property
    def ended(self) -> bool:
        """Whether it is finished, or diverged, which it would do again."""
        record = self.record()
        return record is not None and (record.finished or record.diverged)

    @property
    def order(self) -> str:
        """The configuration as JSON."""
        return json.dumps(self.config.as_json(), indent=1)


@dataclass(frozen=True)
class Job:
    """Any other work that a pool can do: a module's ``main(folder)``, which reads its order in the folder."""

    folder: Path
    worker: str
    name: str
    order: str
    """As JSON."""
    ended = False


def write_order(run: PlannedRun | Job) -> None:
    """Write what a run is to do where its process will read it."""
    run.folder.mkdir(parents=True, exist_ok=True)
    write_atomically(run.folder / CONFIG_NAME, run.order.encode())


@dataclass(frozen=True)
class Comparison:
    """Methods and seeds that share one configuration: the same data, order, initial weights and budget for each."""

    config: Config
    methods: tuple[str, ...] = DEFAULT_METHODS
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What differs for a method, as in ``{"sam": {"rho": 0.1}}``."""
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a search tried and chose for a method; written into its records."""
    tune: int = 0
    """Trials of each method before the runs; 0: none."""
    tune_over: tuple[str, ...] = ("rho",)
    """The settings that the trials vary."""


def plan(comparison: Comparison, folder: str | Path) -> list[PlannedRun]:
    """Return one run for each seed and method, seed by seed, so that whole comparisons come first."""
    if not comparison.methods or not comparison.seeds:
        raise ValueError(
            "a comparison needs methods and seeds (--methods, --seeds), got "
            f"{[*comparison.methods]} and {[*comparison.seeds]}"
        )
    for method, settings in comparison.settings.items():
        _check_settings(method, settings)
    configs = [configured(comparison, method, seed) for seed in comparison.seeds for method in comparison.methods]
    runs = [PlannedRun(config, folder_of(config, folder)) for config in configs]
    return list({run.folder: run for run in runs}.values())


def configured(comparison: Comparison, method: str, seed: int) -> Config:
    """Return the configuration of one run.

    A common setting reaches the methods that have it, unless it is what makes the method: esam-swp is ESAM with gamma
    = 1, whatever gamma the others have. What is given for a method by name goes before both.
    """
    row = find_method(method)
    changes = dict(comparison.settings.get(method, {}))
    common = {k: v for k, v in comparison.config.settings.items() if k in row.options() and k not in row.settings}
    settings = {**common, **{name: changes.pop(name) for name in list(changes) if name in row.options()}}
    tuned = comparison.tuned.get(method, {})
    return dataclasses.replace(comparison.config, method=method, seed=seed, settings=settings, tuned=tuned, **changes)


def trial_config(comparison: Comparison, method: str, values: Mapping[str, Any], seed: int = SEED) -> Config:
    """Return a trial of a search: a method's run with other values, evaluated on held-out training data."""
    settings = {**comparison.settings, method: {**comparison.settings.get(method, {}), **values}}
    config = configured(dataclasses.replace(comparison, settings=settings), method, seed)
    return dataclasses.replace(config, validation=True)


def folder_of(config: Config, folder: str | Path) -> Path:
    """Return the folder of a run below ``folder``: its name follows from the configuration alone."""
    return Path(folder) / f"{config.method.replace(':', '.')}-seed{config.seed}-{config.id()}"


def _check_settings(method: str, settings: Mapping[str, Any]) -> None:
    fields = {f.name for f in dataclasses.fields(Config)} - {"method", "seed", "settings", "tuned"}
    known = fields | {*find_method(method).options()}
    for name in settings:
        if name not in known:
            raise ValueError(f"{method} has no setting {name!r} of its own.{did_you_mean(name, known)}")
