"""What was the same in all the runs, and what differed?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from esam.report.groups import SILENT, flatten, text
from esam.report.words import ABSENT
from esam.train.record import RunRecord


def common_and_differing(
    records: Sequence[RunRecord],
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The settings that all the runs share, and those that differ, as {setting: {name: values}}."""
    settings = [(record.name, flatten(record.config)) for record in records]
    common: dict[str, str] = {}
    differing: dict[str, dict[str, str]] = {}
    for key in dict.fromkeys(key for _, setting in settings for key in setting if key not in SILENT):
        found: dict[str, list[str]] = {}
        for name, setting in settings:
            found.setdefault(name, []).append(ABSENT if setting.get(key) is None else text(setting[key]))
        distinct = {value for values in found.values() for value in values}
        if len(distinct) == 1:
            common[key] = distinct.pop()
        else:
            differing[key] = {name: "; ".join(dict.fromkeys(values)) for name, values in found.items()}
    return common, differing


def environments(records: Sequence[RunRecord]) -> dict[str, str]:
    """The environment's entries; where the runs disagree, each value with the number of its runs."""
    entries: dict[str, str] = {}
    for key in dict.fromkeys(key for record in records for key in record.run["environment"]):
        values = [text(record.run["environment"].get(key)) for record in records]
        counts = {value: values.count(value) for value in values}
        entries[key] = "; ".join(value if len(counts) == 1 else f"{value} ({n} runs)" for value, n in counts.items())
    return entries


def notes(records: Sequence[RunRecord]) -> list[str]:
    """The remarks that the runs carry in their config, each once, and a warning where their times do not compare."""
    told = [note for record in records for note in _listed(record.config.get("notes"))]
    machines = {
        (record.run["environment"].get("hardware"), record.run["environment"].get("threads")) for record in records
    }
    if len(machines) > 1:
        told.append("The runs were measured on different hardware or thread counts: their times do not compare.")
    return list(dict.fromkeys(told))


def commands(records: Sequence[RunRecord]) -> list[str]:
    """The commands that the runs carry in their config, each once."""
    found = [record.config.get("command") for record in records]
    return list(dict.fromkeys(shlex.join(map(str, c)) if isinstance(c, list) else str(c) for c in found if c))


def _listed(value: Any) -> list[str]:
    if value is None:
        return []
    return [text(note) for note in value] if isinstance(value, list) else [text(value)]
