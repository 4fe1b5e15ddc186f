"""Which columns do the tables of a comparison have, and how are its figures given to another program?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from esam.report.measured import ABSENT, Measured, duration, memory, percent, written
from esam.report.settings import readable, recorded_settings, shown
from esam.report.sheets import Form, Sheet, as_text, formatted
from esam.report.summaries import BITS, COST, QUALITY, MethodSummary
from esam.report.verdict import advice, verdict

Search = Mapping[str, Any]
"""As a record holds it: {"trials": [{"rho": 0.05, "accuracy": 0.9, "loss": 0.3}, ...], "chosen": {"rho": 0.05}}."""


def results_sheet(methods: Sequence[MethodSummary], title: str = "", columns: Sequence[str] | None = None) -> Sheet:
    """Return one line a method: the columns of these titles, or those that answer who won and at what price.

    Training accuracy is always among them: without it, a method that was not trained enough looks like a bad one.
    """
    cells = _cells(methods)
    if columns is None:
        classes = any(one.accuracy is not None for one in methods)
        always = {"Train acc., %"} if classes or all(one.test_loss is None for one in methods) else set()
        first = [key for key in cells if key not in _detailed(methods)]
        columns = [key for key in first if key in always or set(cells[key]) != {ABSENT}]
    rows = zip([one.name for one in methods], *(cells[key] for key in columns), strict=True)
    return Sheet(title, ("Method", *columns), tuple(rows))


def details_sheet(methods: Sequence[MethodSummary], title: str = "") -> Sheet:
    """Return the figures that the first table leaves out."""
    cells = _cells(methods)
    return results_sheet(
        methods, title, [key for key in _detailed(methods) if set(cells.get(key, [ABSENT])) != {ABSENT}]
    )


def _detailed(methods: Sequence[MethodSummary]) -> list[str]:
    """Return the columns of the second table."""
    same = ["Seeds"] if len({one.n for one in methods}) == 1 else []  # said once, in the title
    classes = ["Test loss"] if any(one.accuracy is not None for one in methods) else []
    return [*same, "CPU time", "Time", "Train loss", *classes, "Images/s", "Peak memory", "Forward", "Backward"]


def _cells(methods: Sequence[MethodSummary]) -> dict[str, list[str]]:
    base = next((one.name for one in methods if one.is_base), "base")
    time = "CPU time" if methods and methods[0].processor_time else "Time"
    searched = tuned_names(searches(methods))
    return {
        "Seeds": [str(one.n) for one in methods],
        "Test acc., %": [_accuracy(one) for one in methods],
        f"Points vs {base}": [ABSENT if one.gain is None else one.gain.format() for one in methods],
        "Test loss": [written(one.test_loss, seeds=one.n) for one in methods],
        "Test metric": [written(one.test_metric, seeds=one.n) for one in methods],
        f"{time} vs {base}": [_ratio(one.time_ratio) for one in methods],
        "Counted": [_ratio(one.counted_ratio) for one in methods],
        time: [ABSENT if one.time is None else duration(one.time.mean) for one in methods],
        "Train acc., %": [percent(one.train_accuracy, seeds=one.n) for one in methods],
        "Sharpness": [written(one.sharpness, seeds=one.n) for one in methods],
        **{f"{bits} bits, points": [_drop(one.drop(bits), one.n) for one in methods] for bits in BITS},
        **{f"{readable(name)}, tuned": [_setting(one, name) for one in methods] for name in searched},
        "Train loss": [written(one.train_loss, seeds=one.n) for one in methods],
        "Images/s": [written(one.images_per_second, seeds=one.n) for one in methods],
        "Peak memory": [ABSENT if one.peak_memory is None else memory(one.peak_memory.mean) for one in methods],
        "Forward": [_count(one.forwards) for one in methods],
        "Backward": [_count(one.backwards) for one in methods],
    }


def _accuracy(one: MethodSummary) -> str:
    reached, lost = percent(one.accuracy, seeds=one.n), one.diverged
    return reached if not lost else f"{reached}; {lost} diverged" if one.n else f"{lost} diverged"


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}×"


def _count(measured: Measured | None) -> str:
    return ABSENT if measured is None else f"{measured.mean:,.1f}".removesuffix(".0")


def _drop(measured: Measured | None, seeds: int) -> str:
    return ABSENT if measured is None else measured.times(-100).format(seeds=seeds, decimals=1)


def _setting(one: MethodSummary, name: str) -> str:
    value = recorded_settings(one.runs[0]).get(name)
    return ABSENT if value is None else shown(value)


def answer_text(methods: Sequence[MethodSummary], title: str = "", width: int | None = None) -> str:
    """Return the comparison for a terminal: who won, the table, what to change."""
    changes = [f"- {change.line}" for change in advice(methods)]
    lines = [verdict(methods).sentence, "", as_text(results_sheet(methods, title), width), *([""] if changes else [])]
    return "\n".join([*lines, *changes])


def results_text(conditions: Mapping[str, Sequence[MethodSummary]], form: Form) -> str:
    """Return the results of every condition: as JSON with mean and deviation of each figure, or as tables."""
    if form == "json":
        return json.dumps(figures(conditions), indent=1, ensure_ascii=False)
    return formatted([results_sheet(methods, title) for title, methods in conditions.items()], form)


def figures(conditions: Mapping[str, Sequence[MethodSummary]]) -> list[dict[str, Any]]:
    """Return a dict for each method: its names, its seeds, and mean and standard deviation of each figure.

    A deviation is None with fewer than two seeds, a figure None where the runs have none.
    """
    rows = []
    for condition, methods in conditions.items():
        for one in methods:
            row = {"condition": condition, "method": one.method, "name": one.name, "diverged": one.diverged}
            row |= {"seeds": [run.seed for run in one.finished], "time_ratio": one.time_ratio}
            row |= {"counted_ratio": one.counted_ratio, "gain": one.gain and dataclasses.asdict(one.gain)}
            measured = {"test_accuracy": one.accuracy, **{name: getattr(one, name) for name in QUALITY + COST}}
            for name, value in measured.items():
                row[name], row[f"{name}_std"] = (None, None) if value is None else (value.mean, value.std)
            rows.append(row)
    return rows


def searches(methods: Sequence[MethodSummary]) -> dict[str, Search]:
    """Return the searches that the runs' records hold, by the methods' names."""
    found = {one.name: [run.config.get("tuned") for run in one.runs] for one in methods}
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
            result = Measured.of([trial["accuracy"] if classes else trial["loss"]])
            rows.append((method, *values, percent(result) if classes else written(result), "chosen" if chosen else ""))
    head = ("Method", *(readable(name) for name in names), "Accuracy, %" if classes else "Loss", "")
    return Sheet("Tuned on held-out training data", head, tuple(rows))
