"""Which columns do the tables of a comparison have, and how are its figures given to another program?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from esam.report.measured import ABSENT, Measured, duration, memory, written
from esam.report.settings import readable, recorded_settings, shown
from esam.report.sheets import Form, Sheet, as_csv, as_markdown, as_text
from esam.report.summaries import MethodSummary
from esam.report.verdict import advice, verdict

Search = Mapping[str, Any]
"""As a record holds it: {"trials": [{"rho": 0.05, "accuracy": 0.9, "loss": 0.3}, ...], "chosen": {"rho": 0.05}}."""
BITS = ("8", "4")
"""Weights rounded to so many bits, where a record says what they reach."""
QUALITY = ("test_loss", "test_metric", "train_loss", "train_accuracy", "sharpness")
COST = ("images_per_second", "seconds", "cpu_seconds", "peak_memory", "forwards", "backwards")


def results_sheet(methods: Sequence[MethodSummary], title: str = "", columns: Sequence[str] | None = None) -> Sheet:
    """Return one line a method: the columns of these titles, or those that answer who won and at what price.

    Training accuracy is always among them: without it, a method that was not trained enough looks like a bad one.
    """
    cells = _cells(methods)
    columns = [key for key in cells if key not in _detailed(methods)] if columns is None else columns
    rows = zip([summary.name for summary in methods], *(cells[key] for key in columns), strict=True)
    return Sheet(title, ("Method", *columns), tuple(rows))


def details_sheet(methods: Sequence[MethodSummary], title: str = "") -> Sheet:
    """Return the figures that the first table leaves out."""
    cells = _cells(methods)
    return results_sheet(methods, title, [key for key in _detailed(methods) if key in cells])


def _detailed(methods: Sequence[MethodSummary]) -> list[str]:
    """Return the columns of the second table."""
    same = ["Seeds"] if len({summary.n for summary in methods}) == 1 else []  # said once, in the title
    classes = ["Test loss"] if any(summary.accuracy is not None for summary in methods) else []
    return [*same, "CPU time", "Time", "Train loss", *classes, "Images/s", "Peak memory", "Forward", "Backward"]


def _cells(methods: Sequence[MethodSummary]) -> dict[str, list[str]]:
    """Return the columns of both tables by their titles, those with something to show."""
    base = next((summary.name for summary in methods if summary.is_base), "base")
    time = "CPU time" if methods and methods[0].processor_time else "Time"
    searched = tuned_names(searches(methods))
    rows = []
    for summary in methods:
        taken = recorded_settings(summary.runs[0])
        row = {
            "Seeds": str(summary.n),
            "Test acc., %": _accuracy(summary),
            f"Points vs {base}": summary.gain and summary.gain.format(),
            "Test loss": written(summary.test_loss, seeds=summary.n),
            "Test metric": written(summary.test_metric, seeds=summary.n),
            f"{time} vs {base}": summary.time_ratio and f"{summary.time_ratio:.2f}×",
            "Counted": summary.counted_ratio and f"{summary.counted_ratio:.2f}×",
            time: summary.time and duration(summary.time.mean),
            "Train acc., %": written(summary.train_accuracy, seeds=summary.n, factor=100, decimals=2),
            "Sharpness": written(summary.sharpness, seeds=summary.n),
            **{f"{b} bits, points": written(summary.drop(b), seeds=summary.n, factor=-100, decimals=1) for b in BITS},
            **{f"{readable(s)}, tuned": None if taken.get(s) is None else shown(taken[s]) for s in searched},
            "Train loss": written(summary.train_loss, seeds=summary.n),
            "Images/s": written(summary.images_per_second, seeds=summary.n),
            "Peak memory": summary.peak_memory and memory(summary.peak_memory.mean),
            "Forward": summary.forwards and f"{summary.forwards.mean:,.1f}".removesuffix(".0"),
            "Backward": summary.backwards and f"{summary.backwards.mean:,.1f}".removesuffix(".0"),
        }
        rows.append({key: value or ABSENT for key, value in row.items()})
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    regression = all(summary.accuracy is None for summary in methods) and any(summary.test_loss for summary in methods)
    always = set() if regression else {"Train acc., %"}
    return {key: column for key, column in columns.items() if key in always or set(column) != {ABSENT}}


def _accuracy(summary: MethodSummary) -> str:
    reached = written(summary.accuracy, seeds=summary.n, factor=100, decimals=2)
    lost = f"{summary.diverged} diverged" if summary.diverged else ""
    return "; ".join(filter(None, [reached if summary.n or not lost else "", lost]))


def answer_text(methods: Sequence[MethodSummary], title: str = "", width: int | None = None) -> str:
    """Return the comparison for a terminal: who won, the table, what to change."""
    changes = [f"- {change.line}" for change in advice(methods)]
    lines = [verdict(methods).sentence, "", as_text(results_sheet(methods, title), width), *([""] if changes else [])]
    return "\n".join([*lines, *changes])


def results_text(conditions: Mapping[str, Sequence[MethodSummary]], form: Form) -> str:
    """Return the results of every condition: as JSON with mean and deviation of each figure, or as tables."""
    if form == "json":
        return json.dumps(figures(conditions), indent=1, ensure_ascii=False)
    sheets = [results_sheet(methods, title) for title, methods in conditions.items()]
    if form == "md":
        return "\n\n".join(text for sheet in sheets for text in (sheet.title, as_markdown(sheet)) if text)
    return "\n\n".join(map(as_csv if form == "csv" else as_text, sheets))


def figures(conditions: Mapping[str, Sequence[MethodSummary]]) -> list[dict[str, Any]]:
    """Return a dict for each method: its names, its seeds, and mean and standard deviation of each figure.

    A deviation is None with fewer than two seeds, a figure None where the runs have none.
    """
    rows = []
    for condition, methods in conditions.items():
        for summary in methods:
            row = {"condition": condition, "method": summary.method, "name": summary.name, "diverged": summary.diverged}
            row |= {"seeds": [run.seed for run in summary.finished], "time_ratio": summary.time_ratio}
            row |= {"counted_ratio": summary.counted_ratio, "gain": summary.gain and dataclasses.asdict(summary.gain)}
            measured = {"test_accuracy": summary.accuracy, **{name: getattr(summary, name) for name in QUALITY + COST}}
            for name, value in measured.items():
                row[name], row[f"{name}_std"] = (None, None) if value is None else (value.mean, value.std)
            rows.append(row)
    return rows


def searches(methods: Sequence[MethodSummary]) -> dict[str, Search]:
    """Return the searches that the runs' records hold, by the methods' names."""
    tuned = {summary.name: [run.config.get("tuned") for run in summary.runs] for summary in methods}
    return {name: search for name, of_runs in tuned.items() if (search := next(filter(None, of_runs), None))}


def tuned_names(searches: Mapping[str, Search]) -> list[str]:
    """Return the settings that some method's search looked for."""
    return list(dict.fromkeys(name for search in searches.values() for name in search.get("chosen", {})))


def tried_sheet(searches: Mapping[str, Search]) -> Sheet:
    """Return each method's trials as a table."""
    names = tuned_names(searches)
    classes = any(trial["accuracy"] is not None for search in searches.values() for trial in search["trials"])
    rows = []
    for method, search in searches.items():
        for trial in search["trials"]:
            chosen = all(trial[name] == value for name, value in search["chosen"].items())
            values = [f"{trial[name]:g}" if name in trial else ABSENT for name in names]
            result = Measured.of([trial["accuracy" if classes else "loss"]])
            reached = written(result, factor=100, decimals=2) if classes else written(result)
            rows.append((method, *values, reached, "chosen" if chosen else ""))
    head = ("Method", *map(readable, names), "Accuracy, %" if classes else "Loss", "")
    return Sheet("Tuned on held-out training data", head, tuple(rows))
