"""What were the runs: their settings, data and environment?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from esam.report.measured import ABSENT
from esam.report.sheets import Sheet
from esam.train.config import Config
from esam.train.record import RunRecord

SILENT = {"method", "seed", "notes", "tuned", "threads", "device", "settings"}
"""Entries of a config that do not tell two runs of a method apart."""
MAIN = {"data", "model", "epochs", "batch_size", "optimizer", "lr", "momentum", "weight_decay", "schedule"}
"""Settings that are shown even at their defaults."""
OF_BASE = ("lr", "momentum", "weight_decay")
"""Settings that an optimizer of the user's own may have otherwise than the configuration, or not at all."""
NAMED = 12
"""Classes that are named; the others are counted."""

Settings = dict[str, Any]
ByName = dict[str, list[str | None]]
"""Different values of one setting, as they are shown, under each name; None where it is not set."""


def flat_settings(config: Settings) -> Settings:
    """Return the settings that tell runs apart on one level: those of the method beside the others."""
    return {key: value for key, value in {**config, **config.get("settings", {})}.items() if key not in SILENT}


def recorded_settings(record: RunRecord) -> Settings:
    """Return the settings as they took effect: a method's defaults too, and of the base what its optimizer has."""
    effective = record.run.get("effective") or {}
    of_base = {name: effective["base"].get(name) for name in OF_BASE} if effective.get("base") else {}
    return {**flat_settings(record.config), **of_base, **effective.get("method", {})}


def describe(settings: Settings) -> str:
    """Write settings in words: "label noise 0.2, model small"."""
    return ", ".join(f"{readable(key)} {shown(value)}" for key, value in settings.items())


def readable(key: str) -> str:
    """Turn a setting's key into words: "label_noise" becomes "label noise"."""
    return key.replace("_", " ")


def shown(value: Any) -> str:
    """Show a setting's value as people write it."""
    if value is None:
        return "not set"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)  # label noise 0.0 and 0 are the same condition
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def values_by_name(records: Sequence[RunRecord], settings: Sequence[Settings]) -> dict[str, ByName]:
    """Return the values of each setting: {"rho": {"SGD": [None], "SAM": ["0.05"]}}."""
    by_key: dict[str, ByName] = {}
    for key in dict.fromkeys(key for setting in settings for key in setting):
        values = by_key[key] = {record.name: [] for record in records}
        for record, setting in zip(records, settings, strict=True):
            value = None if setting.get(key) is None else shown(setting[key])
            values[record.name] += [value] if value not in values[record.name] else []
    return by_key


def common_and_differing(records: Sequence[RunRecord]) -> tuple[Sheet, Sheet]:
    """Return the settings that all the runs share, and those that differ with a column for each name.

    Minor settings at their defaults are left out.
    """
    usual = {key: shown(value) for key, value in Config().as_json().items() if key not in MAIN}
    common, differing = [], []
    for key, values in values_by_name(records, [recorded_settings(record) for record in records]).items():
        different = {value for each in values.values() for value in each}
        if len(different) > 1:
            differing.append((readable(key), *("; ".join(v or ABSENT for v in each) for each in values.values())))
        elif (value := different.pop()) is not None and value != usual.get(key):
            common.append((readable(key), value))
    names = dict.fromkeys(record.name for record in records)
    shared = Sheet("Common to all runs", ("Setting", "Value"), tuple(common))
    return shared, Sheet("What differs", ("Setting", *names), tuple(differing))


def environment_sheet(records: Sequence[RunRecord]) -> Sheet:
    """Return where the runs ran."""
    places = [record.run["environment"] for record in records]
    return _entries("Environment", [{readable(key): shown(value) for key, value in each.items()} for each in places])


def data_sheet(records: Sequence[RunRecord]) -> Sheet:
    """Return counts, classes and shape of the data, where the records have them."""
    return _entries("Data", [_data_words(record.data) for record in records if record.data is not None])


def _entries(title: str, runs: Sequence[Mapping[str, str]]) -> Sheet:
    """Return the entries of several runs; where they disagree, each value with the number of its runs."""
    rows = []
    for key in dict.fromkeys(key for entries in runs for key in entries):
        counts = Counter(entries.get(key, ABSENT) for entries in runs)
        values = [value if len(counts) == 1 else f"{value} ({n} run{'s' * (n > 1)})" for value, n in counts.items()]
        rows.append((key, "; ".join(values)))
    return Sheet(title, ("Entry", "Value"), tuple(rows))


def notes(records: Sequence[RunRecord]) -> list[str]:
    """Return the remarks that the runs carry, each once, and a warning where their times do not compare."""
    remarks = [str(note) for record in records for note in record.config.get("notes") or ()]
    machines = {tuple(record.run["environment"].get(key) for key in ("hardware", "threads")) for record in records}
    if len(machines) > 1:
        remarks.append("The runs were measured on different hardware or thread counts: their times do not compare.")
    return list(dict.fromkeys(remarks))


def _data_words(facts: Mapping[str, Any]) -> dict[str, str]:
    words = {"training samples": f"{facts['train']:,}", "test samples": f"{facts['test']:,}"}
    if facts.get("shape"):
        words["shape of a sample"] = " × ".join(map(str, facts["shape"]))
    counts = {part: each for part, each in (facts.get("of_each_class") or {}).items() if each}
    names = facts.get("classes") or range(max(map(len, counts.values()), default=0))
    if names:
        rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        words["classes"] = f"{len(names)}: {', '.join(map(str, names[:NAMED]))}{rest}"
    for part, each in counts.items():
        low, high = min(each), max(each)
        words[f"{part} samples of a class"] = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    words["fingerprint"] = str(facts["fingerprint"])
    return words
