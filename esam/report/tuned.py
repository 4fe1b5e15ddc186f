"""What did a search try for each method, and what did it choose?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esam.report.settings import readable
from esam.report.sheets import Sheet
from esam.report.summaries import MethodSummary
from esam.report.words import ABSENT

Search = Mapping[str, Any]
"""As a record holds it: {"trials": [{"rho": 0.05, "accuracy": 0.9, "loss": 0.3}, ...], "chosen": {"rho": 0.05}}."""


def searches(methods: Sequence[MethodSummary]) -> dict[str, Search]:
    """Return the searches that the runs' records tell of, by the methods' names."""
    found = {one.name: [run.config.get("tuned") for run in one.group.runs] for one in methods}
    return {name: search for name, several in found.items() if (search := next(filter(None, several), None))}


def tuned_names(searches: Mapping[str, Search]) -> list[str]:
    """Return the settings that some method's search looked for."""
    return list(dict.fromkeys(name for search in searches.values() for name in search.get("chosen", {})))


def tried_sheet(searches: Mapping[str, Search]) -> Sheet:
    """Return each method's trials as a table."""
    names = tuned_names(searches)
    every = [trial for search in searches.values() for trial in search["trials"]]
    classes = any(trial["accuracy"] is not None for trial in every)
    rows = []
    for method, search in searches.items():
        for trial in search["trials"]:
            chosen = all(trial[name] == value for name, value in search["chosen"].items())
            values = [f"{trial[name]:g}" if name in trial else ABSENT for name in names]
            rows.append((method, *values, _result(trial, classes), "chosen" if chosen else ""))
    head = ("Method", *(readable(name) for name in names), "Accuracy, %" if classes else "Loss", "")
    return Sheet("Tuned on held-out training data", head, tuple(rows))


def _result(trial: Mapping[str, Any], classes: bool) -> str:
    value = trial["accuracy"] if classes else trial["loss"]
    return ABSENT if value is None else f"{100 * value:.2f}" if classes else f"{value:.4g}"
