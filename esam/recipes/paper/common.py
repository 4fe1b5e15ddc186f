"""What do the paper's tables share? Rows of methods on tasks, their accuracy and speed, and the paper's beside ours."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esam.compare.plan import Comparison
from esam.optim import METHODS
from esam.report.sheets import Sheet
from esam.reproduce.item import Row
from esam.reproduce.scale import Task, words
from esam.reproduce.store import Found
from esam.train.record import RunRecord

if TYPE_CHECKING:
    from esam.analysis.plot import Bar

LABELS = {"sgd": "SGD", "sam": "SAM", "esam": "ESAM", "esam-swp": "ESAM-SWP", "esam-sds": "ESAM-SDS"}
DEFAULT = "ESAM (default)"
DEFAULT_FORM = {"ranking": "random", "choose": "suffix"}
"""What ESAM takes by itself, written out: a record must still say what it is of when the default changes."""
COLOURS = {
    **{row.named(base): row.colour for base in ("SGD", "AdamW") for row in METHODS.values()},
    DEFAULT: METHODS["esam-random"].colour,
}
"""One colour for a method in every figure."""
ABSENT = "–"
THREE = ("sgd", "sam", "esam")
FIVE = ("sgd", "sam", "esam-swp", "esam-sds", "esam")


@dataclasses.dataclass(frozen=True)
class Printed:
    """A row of a table as the paper prints it: accuracy and its spread in %, images/s, speed over SAM's in %."""

    accuracy: float
    spread: float | None
    images_per_second: float
    speed: float | None = None


def printed_json(tables: Mapping[Task, Mapping[str, Printed]]) -> dict[str, Any]:
    """Give the paper's rows as plain JSON values."""
    return {
        words(task): {label: dataclasses.asdict(row) for label, row in rows.items()} for task, rows in tables.items()
    }


def rows_of(task: Task, comparison: Comparison, methods: Sequence[str], *, default: bool = False) -> tuple[Row, ...]:
    """Return one row a method; with ``default``, one more for ESAM as this package has it by default."""
    rows = [Row(words(task), _label(method, comparison), _alone(comparison, method)) for method in methods]
    if default:
        rows.append(Row(words(task), DEFAULT, _alone(with_settings(comparison, **DEFAULT_FORM), "esam")))
    return tuple(rows)


def with_settings(comparison: Comparison, **settings: Any) -> Comparison:
    """Return a comparison whose common configuration has other settings."""
    return dataclasses.replace(comparison, config=dataclasses.replace(comparison.config, **settings))


def figures_of(found: Found, rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return, by task and method, accuracy over the seeds, its gain over the base optimizer's, and sharpness."""
    tasks: dict[str, dict[str, Any]] = {}
    for row in rows:
        tasks.setdefault(row.task, {})[row.label] = _figures(found.records(row))
    for methods in tasks.values():
        for label, own in methods.items():
            own["gain"] = _difference(own["accuracy"], methods.get(_base(methods), {}).get("accuracy"), label)
    return tasks


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Return values with mean, sample standard deviation and number of those that are finite."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return {
        "mean": statistics.fmean(known) if known else None,
        "std": statistics.stdev(known) if len(known) > 1 else None,
        "n": len(known),
        "values": list(values),
    }


def accuracy_sheet(title: str, measured: Mapping[str, Any], paper: Mapping[str, Any]) -> Sheet:
    """Return ours and the paper's figures side by side, one line for each method on each task."""
    head = (
        "Task, method",
        "Accuracy, %",
        "best, %",
        "paper, %",
        "over SGD",
        "paper",
        "Images/s",
        "of SAM's speed",
        "by count",
        "paper",
        "paper, images/s",
        "n",
    )
    lines = []
    for task, methods in measured["tasks"].items():
        theirs = paper.get(task, {})
        for label, own in methods.items():
            turn = measured["timed"][task][label]
            printed = theirs.get(_theirs(label)) if label != DEFAULT else None
            base = theirs.get("SGD")
            lines.append(
                (
                    f"{measured['titles'][task]}: {label}",
                    told(own["accuracy"], 2),
                    told(own["best"], 2),
                    _paper_accuracy(printed),
                    _signed(own["gain"]),
                    f"{printed['accuracy'] - base['accuracy']:+.2f}"
                    if printed and base and printed != base
                    else ABSENT,
                    f"{turn['images_per_second']:,.0f}",
                    f"{100 * turn['ratio']:.1f} %",
                    f"{100 * turn['counted']:.1f} %",
                    f"{printed['speed']:.1f} %" if printed and printed["speed"] else ABSENT,
                    f"{printed['images_per_second']:,.0f}" if printed else ABSENT,
                    str(own["accuracy"]["n"]),
                )
            )
    return Sheet(title, head, tuple(lines))


def draw_bars(measured: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw accuracy and speed of every method, a panel for each task."""
    from esam.analysis.plot import bars

    def panels(bar: Callable[[str, str], Bar]) -> dict[str, dict[str, Bar]]:
        return {
            measured["titles"][task].replace(" for ", "\nfor "): {short(label): bar(task, label) for label in methods}
            for task, methods in measured["tasks"].items()
        }

    written = []
    for kind, bar, title, number in (
        ("accuracy", lambda *at: accuracy_bar(measured, *at), "Test accuracy, %", ".1f"),
        ("speed", lambda *at: speed_bar(measured, *at), "Training speed, images/s", ",.0f"),
    ):
        drawn = panels(bar)
        where, formats = path.with_name(f"{path.name}-{kind}"), dict.fromkeys(drawn, number)
        written += bars(where, drawn, title=title, formats=formats, colours=short_colours())
    return written


def accuracy_bar(measured: Mapping[str, Any], task: str, label: str) -> Bar:
    """Return the mean accuracy over seeds as a bar, with its standard deviation."""
    from esam.analysis.plot import Bar

    accuracy = measured["tasks"][task][label]["accuracy"]
    return Bar(accuracy["mean"], accuracy["std"])


def speed_bar(measured: Mapping[str, Any], task: str, label: str) -> Bar:
    """Return the speed of a method's steps as a bar."""
    from esam.analysis.plot import Bar

    return Bar(measured["timed"][task][label]["images_per_second"], None)


def told(value: Mapping[str, Any] | None, decimals: int) -> str:
    """Write mean ± standard deviation."""
    if value is None or value["mean"] is None:
        return ABSENT
    text = f"{value['mean']:,.{decimals}f}"
    return text + (f" ± {value['std']:,.{decimals}f}" if value["std"] is not None else "")


def mean_over(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is there, None if nothing is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def slug(text: str) -> str:
    """Turn a task's name into part of a file's name: "ResNet-18, CIFAR-10" becomes "resnet-18-cifar-10"."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def _label(method: str, comparison: Comparison) -> str:
    return "AdamW" if method == "sgd" and comparison.config.optimizer == "adamw" else LABELS[method]


def _theirs(label: str) -> str:
    return "SGD" if label == "AdamW" else label


def short_colours() -> dict[str, str]:
    """Return the colours by the labels that stand below bars."""
    return {short(label): colour for label, colour in COLOURS.items()}


def short(label: str) -> str:
    """Return a label that fits below a bar."""
    return {DEFAULT: "ESAM\n(default)", "ESAM-SWP": "+ SWP", "ESAM-SDS": "+ SDS"}.get(label, label)


def _base(methods: Iterable[str]) -> str:
    return next((label for label in methods if label in ("SGD", "AdamW")), "")


def _alone(comparison: Comparison, method: str) -> Comparison:
    own = {method: comparison.settings[method]} if method in comparison.settings else {}
    return dataclasses.replace(comparison, methods=(method,), settings=own)


def _figures(records: Sequence[RunRecord]) -> dict[str, Any]:
    def over(pick: Callable[[dict[str, Any]], float | None]) -> dict[str, Any]:
        return spread([pick(record.end) for record in records if record.end is not None])

    return {
        "accuracy": over(lambda end: _percent(end["test_accuracy"].get("last"))),
        "best": over(lambda end: _percent(end["test_accuracy"].get("best"))),
        "sharpness": over(lambda end: end.get("sharpness")),
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _difference(mine: Mapping[str, Any], base: Mapping[str, Any] | None, label: str) -> float | None:
    if base is None or label in ("SGD", "AdamW") or mine["mean"] is None or base["mean"] is None:
        return None
    return float(mine["mean"] - base["mean"])


def _signed(value: float | None) -> str:
    return ABSENT if value is None else f"{value:+.2f}"


def _paper_accuracy(printed: Mapping[str, Any] | None) -> str:
    if printed is None:
        return ABSENT
    return f"{printed['accuracy']:.2f}" + (f" ± {printed['spread']:.2f}" if printed["spread"] is not None else "")
