"""Which runs make up a comparison, and where does each one live?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esam.files import write_atomically
from esam.train.config import METHOD_SETTINGS, Config
from esam.train.names import did_you_mean
from esam.train.record import RECORD_NAME, RunRecord, config_id, read_record

CONFIG_NAME = "config.json"


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
    methods: tuple[str, ...] = ("sgd", "sam", "esam")
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What differs for a method, as in ``{"sam": {"rho": 0.1}}``."""


def plan(comparison: Comparison, folder: str | Path) -> list[PlannedRun]:
    """Return one run for each seed and method, seed by seed, so that whole comparisons come first."""
    if not comparison.methods or not comparison.seeds:
        raise ValueError(f"a comparison needs methods and seeds, got {comparison.methods} and {comparison.seeds}")
    methods = dict.fromkeys((*comparison.methods, *comparison.settings))
    own = {method: _own_settings(method, comparison.settings.get(method, {})) for method in methods}
    runs = []
    for seed in comparison.seeds:
        for method in comparison.methods:
            config = dataclasses.replace(comparison.config, method=method, seed=seed, **own[method])
            name = f"{method}-seed{seed}-{config_id(config.given())}"
            runs.append(PlannedRun(config, Path(folder) / name))
    return list(dict.fromkeys(runs))


def _own_settings(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs for a method: what is given for it by name, and None for common settings that are not its."""
    from esam.optim import METHODS  # here: reading a plan must not wait for torch
    from esam.train.runs import settings_of

    taken = settings_of(method)
    known = {f.name for f in dataclasses.fields(Config)} - {"method", "seed", *METHOD_SETTINGS} | {*taken}
    for name in given:
        if name not in known:
            raise ValueError(f"{method} has no setting {name!r} of its own.{did_you_mean(name, known)}")
    # SAM has no gamma; esam-swp is ESAM with gamma = 1, where no ranking matters. Equal runs are shared, so what means
    # nothing is dropped
    own = METHODS[method].settings if method in METHODS else {}
    off = [name for name in ("beta", "gamma") if own.get(name) == 1]
    idle = [{"beta": "choose", "gamma": "ranking"}[name] for name in off]
    dropped = [name for name in METHOD_SETTINGS if name not in taken or name in off or name in idle]
    return {**dict.fromkeys(dropped), **given}
