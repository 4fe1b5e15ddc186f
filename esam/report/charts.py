"""What is drawn of a comparison? Plotly figures as plain data; report.js adds what all of them share."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from esam.report.measured import Measured, duration
from esam.report.summaries import MethodSummary
from esam.styles import MethodStyle
from esam.train.record import RunRecord

PlotlyTrace = dict[str, Any]
Drawn = tuple[MethodSummary, MethodStyle]

CLASSES = 30
"""Classes that a chart has room for."""
BANDS = 3
"""Methods that are shown with their bands; of more, they would hide one another. report.js has it, too."""
STEEP = 20
"""Values whose highest is more than this many times their lowest are drawn on a logarithmic axis."""
LOG_AXIS = {"type": "log", "dtick": "D2", "tickformat": "~g"}
UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))


@dataclass(frozen=True)
class Chart:
    """One figure: heading, how to read it, the same in words for those who cannot see it, and what plotly draws."""

    title: str
    reading: str
    label: str
    traces: list[PlotlyTrace]
    layout: dict[str, Any]
    wide: bool = False
    """Whether it takes the whole width of the page."""


def charts(drawn: Sequence[Drawn]) -> list[Chart]:
    """Return the charts of a comparison that have something to show; the first answers who won at what price."""
    found = [
        _price(drawn),
        _curves(drawn, "Test accuracy against epochs, %", "epoch", "test_accuracy"),
        _curves(drawn, "Test accuracy against the clock, %", "seconds", "test_accuracy"),
        _curves(drawn, "Training loss against epochs", "epoch", "train_loss"),
        _curves(drawn, "Test loss against epochs", "epoch", "test_loss"),
        _sharpness(drawn),
        _by_class(drawn),
    ]
    return [chart for chart in found if chart.traces]


def _unit(longest: float) -> tuple[str, int]:
    return next((unit for unit in UNITS if longest >= 3 * unit[1]), UNITS[-1])


def _price(drawn: Sequence[Drawn]) -> Chart:
    """Show accuracy, or test loss, against time with the spread of both; the front joins what nothing beats in both."""
    classes = any(one.accuracy is not None for one, _ in drawn)
    sign, up = (1, "test accuracy, %") if classes else (-1, "test loss")
    alike = [(one, style) for one, style in drawn if (one.accuracy is not None) == classes]
    placed = [(one.time, one.score, style) for one, style in alike if one.time and one.score]
    unit, length = _unit(max((time.mean for time, *_ in placed), default=0))
    hover = f"%{{meta.name}}: %{{y:.4g}} at %{{x:.3g}} {unit}"
    traces, words = [], []
    for time, score, style in placed:
        x, y = time.times(1 / length), score.times(sign)
        bars: dict[str, Any] = {"error_x": _error(x, style), "error_y": _error(y, style)}
        marker = {"color": style.colour, "size": 12}
        traces.append(style.trace(hover, end=True, x=[x.mean], y=[y.mean], mode="markers", marker=marker, **bars))
        words.append(f"{style.name} {y.mean:.4g} in {duration(time.mean)}")
    front: list[tuple[float, float]] = []
    for seconds, value in sorted((time.mean, -score.mean) for time, score, _ in placed):
        if not front or -value > sign * front[-1][1]:
            front.append((seconds / length, -sign * value))
    if len(front) > 1:
        line = {"color": "rgba(128, 128, 128, 0.7)", "width": 1.5, "dash": "dot", "shape": "hv"}
        steps = {"x": [x for x, _ in front], "y": [y for _, y in front], "mode": "lines", "line": line}
        traces.insert(0, {"meta": {"group": "", "name": "front"}, "hoverinfo": "skip", **steps})
    kind = "processor time" if drawn and drawn[0][0].processor_time else "training time"
    layout = {
        "xaxis": {"title": {"text": f"{kind}, {unit}"}, "rangemode": "tozero", "showgrid": True},
        "yaxis": {"title": {"text": up}},
        "hovermode": "closest",
    }
    reading = "Up and to the left is better; bars: one standard deviation over seeds; dotted: the front"
    return Chart("What it gives and what it costs", reading, f"{up}: {'; '.join(words)}.", traces, layout, wide=True)


def _error(measured: Measured, style: MethodStyle) -> dict[str, Any]:
    shown = {"array": [measured.std or 0], "visible": bool(measured.std)}
    return {"type": "data", "color": style.colour, "width": 3, **shown}


def _sharpness(drawn: Sequence[Drawn]) -> Chart:
    traces, words = [], []
    values: list[float] = []
    for one, style in drawn:
        if one.sharpness is not None:
            mean = one.sharpness.mean
            found = {f"seed {run.seed}": run.end.get("sharpness") for run in one.finished if run.end}
            dots = {seed: value for seed, value in found.items() if value is not None}
            line = {"symbol": "line-ew-open", "size": min(30, 200 // len(drawn)), "line": {"width": 2}}
            for points, marker in (({"mean": mean}, line), (dots, {"size": 9, "opacity": 0.75})):
                traces.append(_dots(style, [style.label] * len(points), points, marker))
            words.append(f"{one.name} {mean:.4g}")
            values += dots.values()
    steep = bool(values) and 0 < STEEP * min(values) < max(values)
    axis = {"type": "category", "showgrid": False, "tickangle": 0 if len(drawn) < 5 else 35}
    layout = {"xaxis": axis, "yaxis": LOG_AXIS if steep else {"rangemode": "tozero"}, "hovermode": "closest"}
    reading = "One dot a seed, a line for the mean; lower is flatter"
    return Chart("Sharpness", reading, f"Sharpness. {'; '.join(words)}.", traces, layout)


def _dots(style: MethodStyle, across: list[str], ups: Mapping[str, float], marker: dict[str, Any]) -> PlotlyTrace:
    """Return dots at places of an axis of words, each named where the reader points at it."""
    hover, marker = "%{meta.name}, %{customdata}: %{y:.4g}", {"color": style.colour, **marker}
    return style.trace(hover, mode="markers", x=across, y=list(ups.values()), customdata=list(ups), marker=marker)


def _by_class(drawn: Sequence[Drawn]) -> Chart:
    """Show the test accuracy on each class; of many classes, those that are hardest on the mean."""
    means = {one.name: _class_means(one) for one, _ in drawn}
    names = next((run.data.get("classes") for one, _ in drawn for run in one.runs if run.data), None) or []
    every = sorted({number for found in means.values() for number in found})
    hardness = {number: fmean(found[number] for found in means.values() if number in found) for number in every}
    hardest = sorted(sorted(hardness, key=lambda number: hardness[number])[:CLASSES])
    label = {n: html.escape(str(names[n]) if n < len(names) else f"class {n}") for n in hardest}
    traces, words = [], []
    for one, style in drawn:
        ups = {label[number]: 100 * means[one.name][number] for number in hardest if number in means[one.name]}
        if ups:
            worst = min(ups, key=lambda name: ups[name])
            words.append(f"{one.name} is lowest on {html.unescape(worst)}, {ups[worst]:.1f} %")
            traces.append(_dots(style, list(ups), ups, {"size": max(5, 10 - len(label) // 6)}))
    title, rest = "Test accuracy on each class, %", f"; the {CLASSES} hardest of {len(hardness)} classes"
    reading = f"After the last epoch, mean of the seeds{rest if len(hardness) > CLASSES else ''}"
    axis = {"type": "category", "categoryarray": list(label.values()), "title": {"text": "class"}}
    lowest = min((value for trace in traces for value in trace["y"]), default=0)
    up = {"title": {"text": "test accuracy, %"}, "range": [max(0, lowest - 5), 102]}
    # side by side, as equal values would hide one another
    layout = {"xaxis": axis, "yaxis": up, "scattermode": "group", "scattergap": 0.5, "hovermode": "closest"}
    return Chart(title, reading, f"{title}. {'; '.join(words)}.", traces, layout, wide=True)


def _class_means(one: MethodSummary) -> dict[int, float]:
    """Return the accuracy on each class, averaged over the seeds that have it."""
    rows = [run.end["class_accuracy"] for run in one.finished if run.end and run.end.get("class_accuracy")]
    columns = [[value for value in column if value is not None] for column in zip(*rows, strict=False)]
    return {number: fmean(column) for number, column in enumerate(columns) if column}


# quantities from epoch to epoch: one line a method, and one a run that is unfinished


class _Point(NamedTuple):
    progress: float
    x: float
    mean: float
    low: float
    high: float
    n: int


def _curves(drawn: Sequence[Drawn], title: str, x: str, y: str) -> Chart:
    """Draw a quantity of each epoch: the mean of the seeds, with a band from the lowest to the highest."""
    lines = [line for one, _ in drawn for run in one.runs for line in run.epochs]
    unit, length = _unit(max((line.get("seconds") or 0 for line in lines), default=0))
    factor = {"seconds": 1 / length, "test_accuracy": 100}
    bands, curves, every, ends = [], [], [], []
    for one, style in drawn:
        for runs in (one.finished, *((run,) for run in one.unfinished)):
            if points := _points(runs, x, y, factor):
                every += points
                ends.append(f"{one.name} ends at {points[-1].mean:.4g}")
                curves.append(_line(style, points, runs))
                bands += [_band(style, points)] if len(runs) > 1 else []
    axis, remarks = _y_axis(every, may_be_steep=y.endswith("loss"))
    x_title = f"{unit} of training" if x == "seconds" else x
    across = {"title": {"text": x_title}, "rangemode": "tozero", "unifiedhovertitle": {"text": f"{x_title} %{{x}}"}}
    # at one time, methods are at different epochs
    layout = {"xaxis": across, "yaxis": axis, "hovermode": "x unified" if x == "epoch" else "closest"}
    differ = bool(bands) and any(point.low < point.high for point in every)
    band = "band from lowest to highest" + (f" where {BANDS} methods or fewer are shown" if len(drawn) > BANDS else "")
    reading = "; ".join([*([f"mean of the seeds, {band}"] if differ else []), *remarks])
    label = f"{title}. {'; '.join(ends)}."
    return Chart(title, reading[:1].upper() + reading[1:], label, bands + curves, layout)


def _points(runs: Sequence[RunRecord], x: str, y: str, factor: Mapping[str, float]) -> list[_Point]:
    found: dict[int, list[tuple[float, float]]] = {}
    for line in (line for run in runs for line in run.epochs):
        if line.get(x) is not None and line.get(y) is not None:
            found.setdefault(line["epoch"], []).append((factor.get(x, 1) * line[x], factor.get(y, 1) * line[y]))
    points = []
    for epoch, pairs in sorted(found.items()):
        across, ups = zip(*pairs, strict=True)
        points.append(_Point(epoch / max(found), fmean(across), fmean(ups), min(ups), max(ups), len(ups)))
    return points


def _band(style: MethodStyle, points: Sequence[_Point]) -> PlotlyTrace:
    across = [point.x for point in points]
    edge = [point.high for point in points] + [point.low for point in reversed(points)]
    colour = "rgba({}, {}, {}, 0.15)".format(*bytes.fromhex(style.colour[1:]))
    drawn: dict[str, Any] = {"x": across + across[::-1], "y": edge, "mode": "lines", "line": {"width": 0}}
    return style.trace("", band=True, hoverinfo="skip", fill="toself", fillcolor=colour, **drawn)


def _line(style: MethodStyle, points: Sequence[_Point], runs: Sequence[RunRecord]) -> PlotlyTrace:
    finished = runs[0].finished
    spread = "%{customdata[0]:.4g} to %{customdata[1]:.4g}, n = %{customdata[2]}"
    what = spread if len(runs) > 1 else f"{'' if finished else 'unfinished, '}seed {runs[0].seed}"
    line = {"width": 2, "dash": style.line} if finished else {"width": 1.25, "dash": "dot"}
    return style.trace(
        f"%{{meta.name}} %{{y:.4g}} ({what})",
        end=finished,
        mode="lines" if len(points) > 1 else "markers",
        x=[point.x for point in points],
        y=[point.mean for point in points],
        customdata=[[point.low, point.high, point.n] for point in points],
        line={"color": style.colour, **line},
        marker={"color": style.colour, "size": 7, "symbol": "circle" if finished else "circle-open"},
    )


def _y_axis(points: Sequence[_Point], *, may_be_steep: bool) -> tuple[dict[str, Any], list[str]]:
    """Return an axis that shows where the curves end, and what the reader must know about it.

    It is logarithmic where losses fall far; else it may cut the curves' start.
    """
    lowest, highest = _extent(points)
    if may_be_steep and 0 < STEEP * lowest < highest:
        return LOG_AXIS, ["log scale"]
    low, high = _extent([point for point in points if point.progress > 0.25] or points)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1
    cut = lowest < low - margin or highest > high + margin
    return {"range": [low - margin, high + margin]}, ["the steep start is cut off"] if cut else []


def _extent(points: Sequence[_Point]) -> tuple[float, float]:
    return min((point.low for point in points), default=0), max((point.high for point in points), default=0)
