"""Which runs are averaged together, and which may stand side by side?

Runs that differ in nothing but the seed form a group: one line of the table. Groups that were run under the same
condition form a section: one table with its charts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from esam.palette import METHOD_COLOURS
from esam.train.record import RunRecord

TASK_WORDS = {"data", "dataset", "data_set", "label_noise", "model"}
"""Settings that name the task: results on different tasks never share a table."""
SILENT = {"name", "method", "seed", "notes", "command", "base", "folder", "out"}
"""Settings that do not tell two runs of a method apart."""

Settings = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed only."""

    name: str
    method: str
    finished: tuple[RunRecord, ...]
    """One run a seed; of several, the one that started last."""
    unfinished: tuple[RunRecord, ...]
    repeats: int
    """Finished runs left out because a later one has their seed."""


@dataclass(frozen=True)
class Section:
    """Groups that were run under the same condition."""

    title: str
    """What sets the condition apart, such as "label noise 0.2"; empty where there is only one."""
    groups: tuple[Group, ...]


def compare(records: Sequence[RunRecord]) -> list[Section]:
    """Sort records into sections by condition, and into groups by method.

    A setting is a condition when it names the task, or when every run has it and some method was run with several
    values of it. A setting that only some runs have (rho, gamma) belongs to the method: where one name was run with
    several values of it, the value becomes part of the name.
    """
    settings = [flatten(record.config) for record in records]
    conditions, options = _telling_keys(records, settings)
    sections: dict[str, dict[str, list[RunRecord]]] = {}
    order: dict[str, Any] = {}
    for record, setting in zip(records, settings, strict=True):
        title = describe({key: setting.get(key) for key in conditions})
        variant = describe({key: setting[key] for key in options[record.name] if setting.get(key) is not None})
        name = f"{record.name} ({variant})" if variant else record.name
        sections.setdefault(title, {}).setdefault(name, []).append(record)
        order[title] = [_sort_key(setting.get(key)) for key in conditions]
    return [Section(title, _groups(sections[title])) for title in sorted(sections, key=lambda title: order[title])]


def flatten(config: Settings, prefix: str = "") -> Settings:
    """Turn nested settings into one level: {"data": {"name": "digits"}} becomes {"data.name": "digits"}."""
    flat: Settings = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def describe(settings: Settings) -> str:
    """Say settings in words: "label noise 0.2, model small"."""
    return ", ".join(f"{words(key)} {text(value)}" for key, value in settings.items())


def words(key: str) -> str:
    """Turn a settings key into words: "data.label_noise" becomes "data label noise"."""
    return key.replace("_", " ").replace(".", " ")


def text(value: Any) -> str:
    """Show a setting's value as people write it."""
    if value is None:
        return "not set"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)  # label noise 0.0 and 0 are the same condition
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _telling_keys(records: Sequence[RunRecord], settings: Sequence[Settings]) -> tuple[list[str], dict[str, list[str]]]:
    conditions: list[str] = []
    options: dict[str, list[str]] = {record.name: [] for record in records}
    for key in dict.fromkeys(key for setting in settings for key in setting if key not in SILENT):
        values: dict[str, set[str]] = {}
        for record, setting in zip(records, settings, strict=True):
            values.setdefault(record.name, set()).add(text(setting.get(key)))
        names_with_several = [name for name, found in values.items() if len(found) > 1]
        of_the_task = not TASK_WORDS.isdisjoint(key.split(".")) and len(set().union(*values.values())) > 1
        in_every_run = all(setting.get(key) is not None for setting in settings)
        if of_the_task or (names_with_several and in_every_run):
            conditions.append(key)
        else:
            for name in names_with_several:
                options[name].append(key)
    return conditions, options


def _groups(runs: dict[str, list[RunRecord]]) -> tuple[Group, ...]:
    groups = [_group(name, found) for name, found in runs.items()]
    known = list(METHOD_COLOURS)
    rank = {method: known.index(method) if method in known else len(known) for method in (g.method for g in groups)}
    return tuple(sorted(groups, key=lambda group: (rank[group.method], _natural(group.name))))


def _group(name: str, runs: Iterable[RunRecord]) -> Group:
    runs = sorted(runs, key=lambda run: (run.seed, str(run.run.get("started", ""))))
    finished = {run.seed: run for run in runs if run.finished}
    return Group(
        name=name,
        method=runs[0].method,
        finished=tuple(finished.values()),
        unfinished=tuple(run for run in runs if not run.finished),
        repeats=sum(run.finished for run in runs) - len(finished),
    )


def _sort_key(value: Any) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return (1, float(value), "")
    return (0 if value is None else 2, 0.0, text(value))


def _natural(name: str) -> list[tuple[int, float, str]]:
    parts = name.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    return [(1, float(part), "") if _is_number(part) else (2, 0.0, part) for part in parts]


def _is_number(part: str) -> bool:
    try:
        return float(part) == float(part)
    except ValueError:
        return False
