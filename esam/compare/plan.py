"""Which runs make up a comparison, and where does each one live?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esam.train.config import Config
from esam.train.record import RECORD_NAME, RunRecord, config_id, read_record, write_atomically

CONFIG_NAME = "config.json"


@dataclass(frozen=True)
class PlannedRun:
    """A configuration and the folder that its configuration alone decides, so that equal runs are shared."""

    config: Config
    folder: Path

    def record(self) -> RunRecord | None:
        """Return what the run has recorded so far."""
        path = self.folder / RECORD_NAME
        return read_record(path) if path.exists() else None

    def prepare(self) -> None:
        """Write the configuration where the run's own process will read it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / CONFIG_NAME, json.dumps(self.config.as_json(), indent=1).encode())


def plan(
    common: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: str | Path,
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PlannedRun]:
    """Return one run for each seed and method: the same data, order, initial weights and budget for each.

    ``settings`` overrides the common configuration for a method, as in ``{"sam": {"rho": 0.1}}``.
    """
    if not methods or not seeds:
        raise ValueError(f"a comparison needs methods and seeds, got {list(methods)} and {list(seeds)}")
    runs = []
    for seed in seeds:
        for method in methods:
            own = dict((settings or {}).get(method, {}))
            if method == "sgd":  # nothing of the base depends on these, so that its runs are shared
                own |= {"rho": None, "beta": None, "gamma": None, "ranking": None, "m": None}
            config = dataclasses.replace(common, method=method, seed=seed, **own)
            name = f"{method}-seed{seed}-{config_id(config.as_json())}"
            runs.append(PlannedRun(config, Path(folder) / name))
    return runs
