"""What were the runs trained on, and what can be taken off the page?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esam.report.sheets import Sheet
from esam.train.record import RunRecord

NAMED = 12
"""Classes that are named; the others are counted."""


def data_sheet(records: Sequence[RunRecord]) -> Sheet:
    """Give counts, classes and shape of the data, where the records tell them; several data sets one after another."""
    told = {str(record.data["fingerprint"]): record.data for record in records if record.data is not None}
    rows: dict[str, dict[str, None]] = {}
    for facts in told.values():
        for name, words in _words(facts).items():
            rows.setdefault(name, {})[words] = None
    return Sheet("Data", ("Entry", "Value"), tuple((name, "; ".join(found)) for name, found in rows.items()))


def _words(facts: Mapping[str, Any]) -> dict[str, str]:
    shape = facts.get("shape")
    found = {"training samples": f"{facts['train']:,}", "test samples": f"{facts['test']:,}"}
    if shape:
        found["shape of a sample"] = " × ".join(map(str, shape))
    classes = facts.get("classes")
    counts = {part: each for part, each in (facts.get("of_each_class") or {}).items() if each}
    number = len(classes or next(iter(counts.values()), []))
    if number:
        found["classes"] = str(number)
        names = [str(name) for name in classes] if classes else [f"class {at}" for at in range(number)]
        for part, each in counts.items():
            found[f"{'training' if part == 'train' else part} samples of each"] = _each(names, each)
        if not counts:
            found["classes"] += f": {_listed(names)}"
    found["fingerprint"] = str(facts["fingerprint"])
    return found


def _each(names: Sequence[str], counts: Sequence[int]) -> str:
    whole = [*counts, *[0] * (len(names) - len(counts))]
    if len(set(whole)) == 1:
        return f"{whole[0]:,} ({_listed(names)})"
    return _listed([f"{name}: {count:,}" for name, count in zip(names, whole, strict=False)])


def _listed(words: Sequence[str]) -> str:
    rest = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def taken_data(conditions: Mapping[str, Sequence[RunRecord]]) -> list[dict[str, Any]]:
    """Give every run as the page's downloads have it: what it was, what it came to, and its epochs by column."""
    runs = []
    for condition, records in conditions.items():
        for record in records:
            columns = dict.fromkeys(key for line in record.epochs for key in line if key != "kind")
            first = {key: value for key, value in record.run.items() if key not in ("kind", "format")}
            epochs = {key: [line.get(key) for line in record.epochs] for key in columns}
            end = {key: value for key, value in (record.end or {}).items() if key != "kind"}
            runs.append({"condition": condition, **first, "epochs": epochs, "end": end or None})
    return runs
