"""How are a run's settings told, and which of them were the same in all the runs?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from esam.report.sheets import Sheet
from esam.report.words import ABSENT
from esam.train.record import RunRecord

SILENT = {"method", "seed", "notes", "tuned", "threads", "device", "settings"}
"""Entries of a config that do not tell two runs of a method apart."""

Settings = dict[str, Any]


def flat_settings(config: Settings) -> Settings:
    """Give the settings that tell runs apart on one level: those of the method beside the others."""
    return {key: value for key, value in {**config, **config.get("settings", {})}.items() if key not in SILENT}


def told_settings(record: RunRecord) -> Settings:
    """Give the settings as they took effect: defaults of the method by their values, where the record has them."""
    own = (record.run.get("effective") or {}).get("method", {})
    return {**flat_settings(record.config), **own}


def describe(settings: Settings) -> str:
    """Say settings in words: "label noise 0.2, model small"."""
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


def common_and_differing(records: Sequence[RunRecord]) -> tuple[Sheet, Sheet]:
    """Give the settings that all the runs share, and those that differ with a column for each name."""
    settings = [(record.name, told_settings(record)) for record in records]
    names = dict.fromkeys(record.name for record in records)
    common, differing = [], []
    for key in dict.fromkeys(key for _, setting in settings for key in setting):
        found: dict[str, dict[str, None]] = {name: {} for name in names}  # for each name its values in order
        for name, setting in settings:
            found[name][ABSENT if setting.get(key) is None else shown(setting[key])] = None
        if len(distinct := {value for values in found.values() for value in values}) > 1:
            differing.append((readable(key), *map("; ".join, found.values())))
        elif distinct != {ABSENT}:
            common.append((readable(key), distinct.pop()))
    shared = Sheet("Common to all runs", ("Setting", "Value"), tuple(common))
    return shared, Sheet("What differs", ("Setting", *names), tuple(differing))


def environments(records: Sequence[RunRecord]) -> Sheet:
    """Give the environment's entries; where the runs disagree, each value with the number of its runs."""
    rows = []
    for key in dict.fromkeys(key for record in records for key in record.run["environment"]):
        counts = Counter(shown(record.run["environment"].get(key)) for record in records)
        told = "; ".join(value if len(counts) == 1 else f"{value} ({n} runs)" for value, n in counts.items())
        rows.append((readable(key), told))
    return Sheet("Environment", ("Entry", "Value"), tuple(rows))


def notes(records: Sequence[RunRecord]) -> list[str]:
    """Give the remarks that the runs carry, each once, and a warning where their times do not compare."""
    told = [str(note) for record in records for note in record.config.get("notes") or ()]
    where = (record.run["environment"] for record in records)
    if len({(one.get("hardware"), one.get("threads")) for one in where}) > 1:
        told.append("The runs were measured on different hardware or thread counts: their times do not compare.")
    for record in records:
        if record.run.get("extended"):
            first, now = record.run["extended"][0], record.config["epochs"]
            told.append(f"{record.name} was trained for {first} epochs, then extended to {now}: another learning rate.")
    return list(dict.fromkeys(told))
