"""What is drawn of a comparison? Plotly figures as plain data; report.js adds what all of them share."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from esam.report.measured import Measured, duration
from esam.report.summaries import MethodSummary
from esam.styles import MethodStyle
from esam.train.record import RunRecord

PlotlyTrace = dict[str, Any]

CLASSES = 30
"""Classes that a chart has room for."""
STEEP = 20
"""Values whose highest is more than this many times their lowest are drawn on a logarithmic axis."""
LOG_AXIS = {"type": "log", "dtick": "D2", "tickformat": "~g"}
UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))


@dataclass(frozen=True)
class Drawn:
    """A method with its style."""

    summary: MethodSummary
    style: MethodStyle

    @property
    def name(self) -> str:
        """The name that people read."""
        return self.summary.name


@dataclass(frozen=True)
class Chart:
    """One figure: heading, how to read it, the same in words for those who cannot see it, and what plotly draws."""

    title: str
    reading: str
    label: str
    traces: list[PlotlyTrace]
    layout: dict[str, Any]
    log: bool = False
    """Whether a logarithmic axis makes sense, so that the reader may turn it on and off."""
    wide: bool = False
    """Whether it takes the whole width of the page."""


def charts(drawn: Sequence[Drawn]) -> list[Chart]:
    """Return the charts of a comparison that have something to show; the first answers who won at what price."""
    lines = [line for one in drawn for run in one.summary.runs for line in run.epochs]
    unit, length = _unit(max((line.get("seconds") or 0 for line in lines), default=0))
    epoch, time = Quantity("epoch"), Quantity("seconds", 1 / length)
    accuracy = Quantity("test_accuracy", 100)
    found = [
        _price(drawn),
        curves(drawn, "Test accuracy against epochs, %", (epoch, accuracy), "epoch", settled_axis),
        curves(drawn, "Test accuracy against the clock, %", (time, accuracy), f"{unit} of training", settled_axis),
        curves(drawn, "Training loss against epochs", (epoch, Quantity("train_loss")), "epoch", loss_axis),
        curves(drawn, "Test loss against epochs", (epoch, Quantity("test_loss")), "epoch", loss_axis),
        _sharpness(drawn),
        _by_class(drawn),
    ]
    return [chart for chart in found if chart.traces]


def _unit(longest: float) -> tuple[str, int]:
    return next((unit for unit in UNITS if longest >= 3 * unit[1]), UNITS[-1])


def _price(drawn: Sequence[Drawn]) -> Chart:
    """Show accuracy, or test loss, against time with the spread of both; the front joins what nothing beats in both."""
    classes = any(one.summary.accuracy is not None for one in drawn)
    points: dict[str, tuple[Measured, Measured]] = {}
    for one in drawn:
        value = one.summary.accuracy and one.summary.accuracy.times(100) if classes else one.summary.test_loss
        if value is not None and one.summary.time is not None:
            points[one.name] = one.summary.time, value
    unit, length = _unit(max((time.mean for time, _ in points.values()), default=0))
    up = f"test {'accuracy, %' if classes else 'loss'}"
    traces, words = [], []
    sign = 1 if classes else -1
    for one in (one for one in drawn if one.name in points):
        time, value = points[one.name]
        time = time.times(1 / length)
        marker = {"color": one.style.colour, "size": 12}
        bars = {"error_x": _error(time, one.style), "error_y": _error(value, one.style)}
        hover = f"%{{meta.name}}: %{{y:.4g}} at %{{x:.3g}} {unit}"
        trace = one.style.trace(hover, x=[time.mean], y=[value.mean], mode="markers", marker=marker, **bars)
        traces.append({**trace, "meta": {**trace["meta"], "end": True}})
        words.append(f"{one.name} {value.mean:.4g} in {duration(time.mean * length)}")
    order = sorted(points.values(), key=lambda point: (point[0].mean, -sign * point[1].mean))
    front = [at for n, at in enumerate(order) if all(sign * at[1].mean > sign * o[1].mean for o in order[:n])]
    if len(front) > 1:
        steps = {"x": [time.mean / length for time, _ in front], "y": [value.mean for _, value in front]}
        line = {"color": "rgba(128, 128, 128, 0.7)", "width": 1.5, "dash": "dot", "shape": "hv"}
        meta = {"group": "", "name": "front"}
        traces.insert(0, {"meta": meta, "mode": "lines", "line": line, "hoverinfo": "skip", **steps})
    kind = "processor time" if drawn and drawn[0].summary.processor_time else "training time"
    layout = {
        "xaxis": {"title": {"text": f"{kind}, {unit}"}, "rangemode": "tozero", "showgrid": True},
        "yaxis": {"title": {"text": up}},
        "hovermode": "closest",
    }
    reading = "Up and to the left is better; bars: one standard deviation over seeds; dotted: the front"
    return Chart("What it gives and what it costs", reading, f"{up}: {'; '.join(words)}.", traces, layout, wide=True)


def _error(measured: Measured, style: MethodStyle) -> dict[str, Any]:
    return {
        "type": "data",
        "array": [measured.std or 0],
        "visible": bool(measured.std),
        "color": style.colour,
        "width": 3,
    }


def _sharpness(drawn: Sequence[Drawn]) -> Chart:
    traces, words = [], []
    values: list[float] = []
    for one in drawn:
        if one.summary.sharpness is not None:
            mean = one.summary.sharpness.mean
            found = {f"seed {run.seed}": run.end.get("sharpness") for run in one.summary.finished if run.end}
            dots = {seed: value for seed, value in found.items() if value is not None}
            line = {"symbol": "line-ew-open", "size": min(30, 200 // len(drawn)), "line": {"width": 2}}
            traces += [_marks(one, {"mean": mean}, line), _marks(one, dots, {"size": 9, "opacity": 0.75})]
            words.append(f"{one.name} {mean:.4g}")
            values += dots.values()
    steep = bool(values) and 0 < STEEP * min(values) < max(values)
    axis = {"type": "category", "showgrid": False, "tickangle": 0 if len(drawn) < 5 else 35}
    layout = {"xaxis": axis, "yaxis": LOG_AXIS if steep else {"rangemode": "tozero"}, "hovermode": "closest"}
    reading = "One dot a seed, a line for the mean; lower is flatter"
    return Chart("Sharpness", reading, f"Sharpness. {'; '.join(words)}.", traces, layout, log=True)


def _marks(one: Drawn, values: Mapping[str, float], marker: dict[str, Any]) -> PlotlyTrace:
    across, ups = [one.style.label] * len(values), list(values.values())
    named = {"customdata": list(values), "marker": {"color": one.style.colour, **marker}}
    return one.style.trace("%{meta.name}, %{customdata}: %{y:.4g}", mode="markers", x=across, y=ups, **named)


def _by_class(drawn: Sequence[Drawn]) -> Chart:
    """Show the test accuracy on each class; of many classes, those that are hardest on the mean."""
    means = {one.name: found for one in drawn if (found := _class_means(one))}
    names = next((run.data.get("classes") for one in drawn for run in one.summary.runs if run.data), None) or []
    every = sorted({number for found in means.values() for number in found})
    hardness = {number: fmean(found[number] for found in means.values() if number in found) for number in every}
    hardest = sorted(hardness, key=lambda number: hardness[number])[:CLASSES]
    label = {n: str(names[n]) if n < len(names) else f"class {n}" for n in sorted(hardest)}
    traces, words = [], []
    for position, one in enumerate(drawn):
        ups = {number: 100 * means[one.name][number] for number in label if number in means.get(one.name, {})}
        if ups:
            worst = min(ups, key=lambda number: ups[number])
            words.append(f"{one.name} is lowest on {label[worst]}, {ups[worst]:.1f} %")
            # side by side, as equal values would hide one another
            aside = 0.5 * ((position + 0.5) / len(drawn) - 0.5)
            across = [list(label).index(number) + aside for number in ups]
            classes = [html.escape(label[number]) for number in ups]
            marker = {"color": one.style.colour, "size": max(5, 10 - len(label) // 6)}
            marks = {"x": across, "y": list(ups.values()), "customdata": classes, "mode": "markers", "marker": marker}
            traces.append(one.style.trace("%{meta.name}, %{customdata}: %{y:.4g} %", **marks))
    title, rest = "Test accuracy on each class, %", f"; the {CLASSES} hardest of {len(hardness)} classes"
    reading = f"After the last epoch, mean of the seeds{rest if len(hardness) > CLASSES else ''}"
    ticks = {"tickvals": list(range(len(label))), "ticktext": [html.escape(word) for word in label.values()]}
    across_axis = {"range": [-0.5, len(label) - 0.5], "title": {"text": "class"}, **ticks}
    layout = {"xaxis": across_axis, "yaxis": {"title": {"text": "test accuracy, %"}}, "hovermode": "closest"}
    return Chart(title, reading, f"{title}. {'; '.join(words)}.", traces, layout, wide=True)


def _class_means(one: Drawn) -> dict[int, float]:
    """Return the accuracy on each class, averaged over the seeds that have it."""
    ends = [run.end for run in one.summary.finished if run.end and run.end.get("class_accuracy")]
    columns = [
        [v for v in column if v is not None] for column in zip(*(e["class_accuracy"] for e in ends), strict=False)
    ]
    return {number: fmean(column) for number, column in enumerate(columns) if column}


# quantities from epoch to epoch: one line a method, or one a seed


class Quantity(NamedTuple):
    """A number of an epoch's line, and what it is multiplied by."""

    key: str
    factor: float = 1


class _Point(NamedTuple):
    progress: float
    x: float
    mean: float
    low: float
    high: float
    n: int


Axis = Callable[[Sequence[_Point]], tuple[dict[str, Any], list[str]]]
"""Points -> an axis on which the ends of the curves can be told apart, and what the reader must know about it."""


def curves(drawn: Sequence[Drawn], title: str, of: tuple[Quantity, Quantity], x_title: str, y_axis: Axis) -> Chart:
    """Draw a quantity of each epoch: the mean of the seeds with a band, and on demand a line for each seed."""
    bands, lines, every, ends = [], [], [], []
    for one in drawn:
        for runs in (one.summary.finished, *((run,) for run in one.summary.unfinished)):
            if points := _points(runs, *of):
                every += points
                ends.append(f"{one.name} ends at {points[-1].mean:.4g}")
                averaged = {"of": "mean"} if len(runs) > 1 else {}
                lines.append(_line(one, points, runs, {**averaged, "end": runs[0].finished}))
                bands += [_band(one, points)] if averaged else []
                for run in runs if averaged else ():
                    if alone := _points([run], *of):
                        lines.append({**_line(one, alone, [run], {"of": "seed"}), "visible": False})
    axis, remarks = y_axis(every)
    by_epoch = x_title == "epoch"
    layout = {
        "xaxis": {
            "title": {"text": x_title},
            "rangemode": "tozero",
            "unifiedhovertitle": {"text": f"{x_title} %{{x}}"},
        },
        "yaxis": axis,
        "hovermode": "x unified" if by_epoch else "closest",  # at one time, methods are at different epochs
    }
    differ = any(point.low < point.high for point in every)
    reading = "; ".join((["mean of the seeds, band from lowest to highest"] if bands and differ else []) + remarks)
    label = f"{title}. {'; '.join(ends)}."
    return Chart(title, reading[:1].upper() + reading[1:], label, bands + lines, layout, log=y_axis is loss_axis)


def _points(runs: Sequence[RunRecord], x: Quantity, y: Quantity) -> list[_Point]:
    found: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for line in run.epochs:
            if line.get(x.key) is not None and line.get(y.key) is not None:
                found.setdefault(line["epoch"], []).append((x.factor * line[x.key], y.factor * line[y.key]))
    points = []
    for epoch, pairs in sorted(found.items()):
        across, ups = zip(*pairs, strict=True)
        points.append(_Point(epoch / max(found), fmean(across), fmean(ups), min(ups), max(ups), len(ups)))
    return points


def _band(one: Drawn, points: Sequence[_Point]) -> PlotlyTrace:
    across = [point.x for point in points]
    edge = [point.high for point in points] + [point.low for point in reversed(points)]
    red, green, blue = (int(one.style.colour[i : i + 2], 16) for i in (1, 3, 5))
    filled = {"fill": "toself", "fillcolor": f"rgba({red}, {green}, {blue}, 0.15)", "line": {"width": 0}}
    trace = one.style.trace("", mode="lines", x=across + across[::-1], y=edge, hoverinfo="skip", **filled)
    return {**trace, "meta": {**trace["meta"], "of": "band"}}


def _line(one: Drawn, points: Sequence[_Point], runs: Sequence[RunRecord], meta: dict[str, Any]) -> PlotlyTrace:
    """Return a line; ``meta`` says to the page's script whether it is a mean or a seed, and whether it is labelled."""
    spread = "%{customdata[0]:.4g} to %{customdata[1]:.4g}, n = %{customdata[2]}"
    what = spread if len(runs) > 1 else f"{'' if runs[0].finished else 'unfinished, '}seed {runs[0].seed}"
    line = {"width": 2, "dash": one.style.line} if runs[0].finished else {"width": 1.25, "dash": "dot"}
    trace = one.style.trace(
        f"%{{meta.name}} %{{y:.4g}} ({what})",
        mode="lines" if len(points) > 1 else "markers",
        x=[point.x for point in points],
        y=[point.mean for point in points],
        customdata=[[point.low, point.high, point.n] for point in points],
        line={"color": one.style.colour, **line},
        marker={"color": one.style.colour, "size": 7, "symbol": "circle" if runs[0].finished else "circle-open"},
    )
    return {**trace, "meta": {**trace["meta"], **meta}}


def loss_axis(points: Sequence[_Point]) -> tuple[dict[str, Any], list[str]]:
    """Return an axis for values above zero, logarithmic where they fall far."""
    lowest, highest = _extent(points)
    return (LOG_AXIS, ["log scale"]) if 0 < STEEP * lowest < highest else settled_axis(points)


def settled_axis(points: Sequence[_Point]) -> tuple[dict[str, Any], list[str]]:
    """Return an axis that shows where the curves end, and may cut their start."""
    lowest, highest = _extent(points)
    low, high = _extent([point for point in points if point.progress > 0.25] or points)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1
    cut = lowest < low - margin or highest > high + margin
    return {"range": [low - margin, high + margin]}, ["the steep start is cut off"] if cut else []


def _extent(points: Sequence[_Point]) -> tuple[float, float]:
    return min((point.low for point in points), default=0), max((point.high for point in points), default=0)
