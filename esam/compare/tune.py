"""Which rho does each method get, by the same small budget and without a look at the test data?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esam.report.sheets import Sheet
from esam.report.words import ABSENT
from esam.train.config import find_method

from .plan import Comparison, PlannedRun, configured, folder_of

SEED = 100
"""Of the search's runs: none that a comparison is likely to have."""
FACTORS = (1, 1 / 2, 2, 1 / 4, 4, 1 / 8, 8, 1 / 16)
"""Tried in this order, as multiples of the value that a method would have otherwise."""

Launch = Callable[[Sequence[PlannedRun]], None]


@dataclass(frozen=True)
class Tried:
    """One value that was tried for a method, and the accuracy on held-out training data that it came to."""

    method: str
    rho: float
    accuracy: float | None
    """None: the run diverged, or failed."""


def tune(comparison: Comparison, folder: str | Path, tries: int, launch: Launch) -> tuple[Comparison, list[Tried]]:
    """Return the comparison with the best of so many values of rho for each method, and all that was tried.

    Each run is as long as those of the comparison, with a fifth of the training data in the place of the test data.
    ``launch`` does the runs; those that are done are not repeated. Of equal values the smaller one is taken.
    """
    if not 1 <= tries <= len(FACTORS):
        raise ValueError(f"tune must be in 1..{len(FACTORS)} values for each method, got {tries}")
    runs: dict[str, list[PlannedRun]] = {}
    for method in comparison.methods:
        start = _rho(comparison, method)
        if start is None:
            continue
        for factor in FACTORS[:tries]:
            config = configured(comparison, method, SEED)
            settings = {**config.settings, "rho": start * factor}
            config = dataclasses.replace(config, settings=settings, validation=True)
            runs.setdefault(method, []).append(PlannedRun(config, folder_of(config, folder)))
    launch([run for several in runs.values() for run in several])
    tried = [_result(method, run) for method, several in runs.items() for run in several]
    chosen: dict[str, dict[str, Any]] = {method: dict(own) for method, own in comparison.settings.items()}
    for method in runs:
        found = [(one.accuracy, -one.rho) for one in tried if one.method == method and one.accuracy is not None]
        if not found:
            raise RuntimeError(f"no value of rho that was tried let {method} come to its end; lower lr")
        chosen[method] = {**chosen.get(method, {}), "rho": -max(found)[1]}
    return dataclasses.replace(comparison, settings=chosen), tried


def tried_sheet(tried: Sequence[Tried]) -> Sheet:
    """Return what was tried as a table."""
    rows = [
        (one.method, f"{one.rho:g}", ABSENT if one.accuracy is None else f"{100 * one.accuracy:.2f}") for one in tried
    ]
    return Sheet("Tuned on held-out training data", ("Method", "rho", "Accuracy, %"), tuple(rows))


def _rho(comparison: Comparison, method: str) -> float | None:
    """Return the value that a method would have; None where it has none."""
    settings = find_method(method).effective(configured(comparison, method, SEED).settings)
    value = settings.get("rho")
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _result(method: str, run: PlannedRun) -> Tried:
    record = run.record()
    end = record.end if record is not None and record.finished else None
    return Tried(method, run.config.settings["rho"], None if end is None else end["test_accuracy"]["last"])
