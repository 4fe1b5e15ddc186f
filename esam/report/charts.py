"""What is drawn of a section? Plotly figures as plain data; report.js adds what all of them share."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from esam.report.summaries import MethodSummary
from esam.train.record import RunRecord

PlotlyTrace = dict[str, Any]

STEEP = 20
"""Values whose highest is more than this many times their lowest are drawn on a logarithmic axis."""
LOG_AXIS = {"type": "log", "dtick": "D2", "tickformat": "~g"}
FINISHED = {"line": {"width": 2}, "marker": {"size": 8}}
UNFINISHED = {"line": {"width": 1.25, "dash": "dot"}, "marker": {"size": 6, "symbol": "circle-open"}}


@dataclass(frozen=True)
class Drawn:
    """A method as the charts know it."""

    summary: MethodSummary
    key: str
    """Names the method in the page, for the chips: "g0"."""
    colour: str

    @property
    def label(self) -> str:
        """The method's name for plotly, which reads some HTML."""
        return html.escape(self.summary.name)

    @property
    def is_base(self) -> bool:
        """Whether the others are measured against this one."""
        return self.summary.is_base

    def trace(self, hover: str, **parts: Any) -> PlotlyTrace:
        """A trace that the method's chip switches."""
        # in meta, because plotly would read a name inside a hovertemplate as part of the template
        return {"meta": {"group": self.key, "name": self.label}, "hovertemplate": f"{hover}<extra></extra>", **parts}


@dataclass(frozen=True)
class Chart:
    """One figure: heading, how to read it, the same in words for those who cannot see it, and what plotly draws."""

    title: str
    reading: str
    label: str
    traces: list[PlotlyTrace]
    layout: dict[str, Any]


def charts(drawn: Sequence[Drawn]) -> list[Chart]:
    """The charts for which the runs have data."""
    lines = [line for one in drawn for run in one.summary.group.runs for line in run.epochs]
    longest = max((line.get("seconds") or 0 for line in lines), default=0)
    unit, length = next((u for u in (("hours", 3600), ("minutes", 60)) if longest >= 3 * u[1]), ("seconds", 1))
    epoch, time = _Quantity("epoch"), _Quantity("seconds", 1 / length)
    accuracy, loss = _Quantity("test_accuracy", 100), _Quantity("train_loss")
    every = [
        _curves(drawn, "Test accuracy against epochs, %", (epoch, accuracy), "epoch", _settled_axis),
        _curves(drawn, "Test accuracy against training time, %", (time, accuracy), unit, _settled_axis),
        _curves(drawn, "Training loss against epochs", (epoch, loss), "epoch", _loss_axis),
        _speed(drawn),
        _sharpness(drawn),
    ]
    return [chart for chart in every if chart.traces]


class _Quantity(NamedTuple):
    """A number of an epoch's line, and what it is multiplied by."""

    key: str
    factor: float = 1


def _curves(drawn: Sequence[Drawn], title: str, of: tuple[_Quantity, _Quantity], x_unit: str, y_axis: Axis) -> Chart:
    bands, lines, shown, ends = [], [], [], []
    for one in drawn:
        for runs in (one.summary.group.finished, *((run,) for run in one.summary.group.unfinished)):
            if points := _points(runs, *of):
                shown += points
                ends.append(f"{one.summary.name} ends at {points[-1].mean:.4g}")
                lines.append(_line(one, points, runs))
                bands += [_band(one, points)] if len(runs) > 1 else []
    axis, remark = y_axis(shown)
    x_title = x_unit if x_unit == "epoch" else f"{x_unit} of training"
    layout = {
        "xaxis": {"title": {"text": x_title}, "rangemode": "tozero", "unifiedhovertitle": {"text": f"{x_unit} %{{x}}"}},
        "yaxis": axis,
        "hovermode": "x unified" if x_unit == "epoch" else "closest",  # at one time, methods are at different epochs
    }
    reading = (["Mean of the seeds, band from lowest to highest"] if bands else []) + remark
    return Chart(title, "; ".join(reading), f"{title}. {'; '.join(ends)}.", bands + lines, layout)


class _Point(NamedTuple):
    progress: float
    x: float
    mean: float
    low: float
    high: float
    n: int


def _points(runs: Sequence[RunRecord], x: _Quantity, y: _Quantity) -> list[_Point]:
    found: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for line in run.epochs:
            if line.get(x.key) is not None and line.get(y.key) is not None:
                pair = x.factor * line[x.key], y.factor * line[y.key]
                found.setdefault(line["epoch"], []).append(pair)
    points = []
    for epoch, pairs in sorted(found.items()):
        across, ups = zip(*pairs, strict=True)
        points.append(_Point(epoch / max(found), fmean(across), fmean(ups), min(ups), max(ups), len(ups)))
    return points


def _band(one: Drawn, points: Sequence[_Point]) -> PlotlyTrace:
    across = [point.x for point in points]
    edge = [point.high for point in points] + [point.low for point in reversed(points)]
    red, green, blue = (int(one.colour[i : i + 2], 16) for i in (1, 3, 5))
    filled = {"fill": "toself", "fillcolor": f"rgba({red}, {green}, {blue}, 0.18)", "line": {"width": 0}}
    return one.trace("", mode="lines", x=across + across[::-1], y=edge, hoverinfo="skip", **filled)


def _line(one: Drawn, points: Sequence[_Point], runs: Sequence[RunRecord]) -> PlotlyTrace:
    spread = "%{customdata[0]:.4g} to %{customdata[1]:.4g}, n = %{customdata[2]}"
    finished = runs[0].finished
    style = FINISHED if finished else UNFINISHED
    return one.trace(
        f"%{{meta.name}} %{{y:.4g}} ({spread if finished else f'unfinished, seed {runs[0].seed}'})",
        mode="lines" if len(points) > 1 else "markers",
        x=[point.x for point in points],
        y=[point.mean for point in points],
        customdata=[[point.low, point.high, point.n] for point in points],
        **{key: {"color": one.colour, **style[key]} for key in style},
    )


Axis = Callable[[Sequence[_Point]], tuple[dict[str, Any], list[str]]]
"""Points -> an axis on which the ends of the curves can be told apart, and what the reader must know about it."""


def _loss_axis(points: Sequence[_Point]) -> tuple[dict[str, Any], list[str]]:
    lowest, highest = _extent(points)
    return (LOG_AXIS, ["log scale"]) if 0 < STEEP * lowest < highest else _settled_axis(points)


def _settled_axis(points: Sequence[_Point]) -> tuple[dict[str, Any], list[str]]:
    lowest, highest = _extent(points)
    low, high = _extent([point for point in points if point.progress > 0.25] or points)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1
    cut = lowest < low - margin or highest > high + margin
    return {"range": [low - margin, high + margin]}, ["the steep start is cut off"] if cut else []


def _extent(points: Sequence[_Point]) -> tuple[float, float]:
    return min((point.low for point in points), default=0), max((point.high for point in points), default=0)


def _speed(drawn: Sequence[Drawn]) -> Chart:
    traces, told, speeds = [], [], [0.0]
    hover = "%{meta.name}: %{y:,.4~g} images/s, test accuracy %{text}"
    for one in drawn:
        if one.summary.images_per_second is not None:
            speed, accuracy = one.summary.images_per_second.mean, one.summary.accuracy
            top = "" if accuracy is None else f"{100 * accuracy.mean:.1f} %"
            told.append(f"{one.summary.name} {speed:,.0f} images a second at {top}")
            bar = {"type": "bar", "width": 0.62, "marker": {"color": one.colour}, "cliponaxis": False}
            text = {"text": [top], "texttemplate": "<b>%{text}</b>", "textposition": "outside"}
            traces.append(one.trace(hover, x=[one.label], y=[speed], **bar, **text))
            speeds.append(speed)
    reading = "Bars: training images a second; on top: test accuracy after the last epoch"
    layout = _by_method({"range": [0, 1.16 * max(speeds)], "tickformat": ",~r"})
    return Chart("Speed and accuracy", reading, f"Speed and accuracy. {'; '.join(told)}.", traces, layout)


def _sharpness(drawn: Sequence[Drawn]) -> Chart:
    traces, told = [], []
    values: list[float] = []
    for one in drawn:
        if one.summary.sharpness is not None:
            mean = one.summary.sharpness.mean
            found = {f"seed {run.seed}": run.end.get("sharpness") for run in one.summary.group.finished if run.end}
            dots = {seed: value for seed, value in found.items() if value is not None}
            line = {"symbol": "line-ew-open", "size": min(30, 200 // len(drawn)), "line": {"width": 2}}
            traces += [_marks(one, {"mean": mean}, line), _marks(one, dots, {"size": 9, "opacity": 0.75})]
            told.append(f"{one.summary.name} {mean:.4g}")
            values += dots.values()
    steep = bool(values) and 0 < STEEP * min(values) < max(values)
    layout = _by_method(LOG_AXIS if steep else {"rangemode": "tozero"})
    reading = "One dot a seed, a line for the mean; lower is flatter"
    return Chart("Sharpness", reading, f"Sharpness. {'; '.join(told)}.", traces, layout)


def _marks(one: Drawn, values: Mapping[str, float], marker: dict[str, Any]) -> PlotlyTrace:
    across, ups = [one.label] * len(values), list(values.values())
    named = {"customdata": list(values), "marker": {"color": one.colour, **marker}}
    return one.trace("%{meta.name}, %{customdata}: %{y:.4g}", mode="markers", x=across, y=ups, **named)


def _by_method(y_axis: dict[str, Any]) -> dict[str, Any]:
    return {"xaxis": {"type": "category", "showgrid": False}, "yaxis": y_axis, "hovermode": "closest"}
