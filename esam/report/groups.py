"""Which runs are averaged together, and which are compared in one table?

Runs that differ in nothing but the seed form a group: one line of the table. Groups that were run under the same
condition form a section: one table with its charts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from esam.optim import METHODS
from esam.report.settings import Settings, describe, flat_settings, shown
from esam.train.record import RunRecord

TASK_SETTINGS = {"data", "label_noise", "model"}
"""Settings that name the task: results on different tasks never share a table."""


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in the seed only."""

    name: str
    method: str
    finished: tuple[RunRecord, ...]
    """One run a seed; of several, the one that started last."""
    unfinished: tuple[RunRecord, ...]
    repeats: int
    """Finished runs left out because a later one has their seed."""

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The runs that the page shows: averaged ones first."""
        return self.finished + self.unfinished

    def left_out(self) -> list[str]:
        """Say what an average over the group does not hold."""
        items = [f"seed {run.seed}: {_how_far(run)}" for run in self.unfinished]
        if self.repeats:
            items.append(f"{self.repeats} of the runs repeat a seed; the latest of each seed counts")
        return [f"{self.name}, {item}" for item in items]


def _how_far(run: RunRecord) -> str:
    if run.diverged and run.end is not None:
        return f"diverged: {run.end.get('error') or f'in epoch {run.last_epoch}'}"
    return f"unfinished after {run.last_epoch} epochs"


def sections(records: Sequence[RunRecord]) -> dict[str, list[SeedGroup]]:
    """Sort records into groups by method, and groups by what sets their condition apart: "label noise 0.2".

    A setting is a condition when it names the task, or when some method was run with several values of it. Where one
    name was run with several values of a setting of the method itself (rho, gamma), the value becomes part of the
    name. The condition is "" where there is only one.
    """
    settings = [flat_settings(record.config) for record in records]
    conditions, options = _telling_keys(records, settings)
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for record, setting in zip(records, settings, strict=True):
        condition = describe({key: setting.get(key) for key in conditions})
        variant = describe({key: setting[key] for key in options[record.name] if setting.get(key) is not None})
        name = f"{record.name} ({variant})" if variant else record.name
        found.setdefault(condition, {}).setdefault(name, []).append(record)
    return {condition: _groups(found[condition]) for condition in sorted(found, key=_natural)}


def _telling_keys(records: Sequence[RunRecord], settings: Sequence[Settings]) -> tuple[list[str], dict[str, list[str]]]:
    conditions: list[str] = []
    options: dict[str, list[str]] = {record.name: [] for record in records}
    of_methods = {key for record in records for key in record.config.get("settings", {})}
    for key in dict.fromkeys(key for setting in settings for key in setting):
        values: dict[str, set[str]] = {name: set() for name in options}
        for record, setting in zip(records, settings, strict=True):
            values[record.name].add(shown(setting.get(key)))
        names_with_several = [name for name, found in values.items() if len(found) > 1]
        of_the_task = key in TASK_SETTINGS and len(set().union(*values.values())) > 1
        if of_the_task or (names_with_several and key not in of_methods):
            conditions.append(key)
        else:
            for name in names_with_several:
                options[name].append(key)
    return conditions, options


def _groups(runs: dict[str, list[RunRecord]]) -> list[SeedGroup]:
    rank = {method: number for number, method in enumerate(METHODS)}
    groups = [_group(name, found) for name, found in runs.items()]
    return sorted(groups, key=lambda group: (rank.get(group.method, len(rank)), _natural(group.name)))


def _group(name: str, runs: Iterable[RunRecord]) -> SeedGroup:
    runs = sorted(runs, key=lambda run: (run.seed, str(run.run.get("started", ""))))
    finished = {run.seed: run for run in runs if run.finished}
    return SeedGroup(
        name=name,
        method=runs[0].method,
        finished=tuple(finished.values()),
        unfinished=tuple(run for run in runs if not run.finished),
        repeats=sum(run.finished for run in runs) - len(finished),
    )


def _natural(text: str) -> list[str | float]:
    """A key that sorts numbers within words by their value."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]
