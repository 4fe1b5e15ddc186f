"""What is drawn of a section? Plotly figures as plain data; report.js adds the page's colours and fonts."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from esam.report.groups import Group
from esam.report.table import Row
from esam.train.record import RunRecord

Trace = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A group as the charts know it."""

    group: Group
    row: Row
    key: str
    """Names the group in the page, for the chips: "g0"."""
    colour: str

    def trace(self, **parts: Any) -> Trace:
        """A trace in the group's colour that the group's chip switches."""
        # in meta, because plotly would read a name inside a hovertemplate as part of the template
        return {"meta": {"group": self.key, "name": html.escape(self.group.name)}, "showlegend": False, **parts}


@dataclass(frozen=True)
class Chart:
    """One figure: heading, how to read it, the same in words for those who cannot see it, and what plotly draws."""

    title: str
    reading: str
    label: str
    traces: list[Trace]
    layout: dict[str, Any]


def charts(drawn: Sequence[Drawn]) -> list[Chart]:
    """The charts for which the runs have data."""
    slowest = max((_seconds(run) for one in drawn for run in (*one.group.finished, *one.group.unfinished)), default=0)
    unit, length = next((u for u in (("hours", 3600), ("minutes", 60)) if slowest >= 3 * u[1]), ("seconds", 1))

    def time(line: dict[str, Any]) -> float | None:
        return None if line.get("seconds") is None else line["seconds"] / length

    every = [
        _curves(drawn, "Test accuracy against epochs, %", (_epoch, _test_accuracy), "epoch", _settled_axis),
        _curves(drawn, "Test accuracy against training time, %", (time, _test_accuracy), unit, _settled_axis),
        _curves(drawn, "Training loss against epochs", (_epoch, _train_loss), "epoch", _loss_axis),
        _speed(drawn),
        _sharpness(drawn),
    ]
    return [chart for chart in every if chart.traces]


Pick = Callable[[dict[str, Any]], float | None]


def _epoch(line: dict[str, Any]) -> float:
    return float(line["epoch"])


def _test_accuracy(line: dict[str, Any]) -> float | None:
    share = line.get("test_accuracy")
    return None if share is None else 100 * share


def _train_loss(line: dict[str, Any]) -> float | None:
    return line.get("train_loss")


def _seconds(run: RunRecord) -> float:
    return max((line.get("seconds") or 0 for line in run.epochs), default=0)


def _curves(drawn: Sequence[Drawn], title: str, of: tuple[Pick, Pick], x_unit: str, y_axis: Axis) -> Chart:
    bands, lines, shown = [], [], []
    for one in drawn:
        points = _points(one.group.finished, *of)
        shown += points
        if len(one.group.finished) > 1 and points:
            bands.append(_band(one, points))
        if points:
            lines.append(_mean_line(one, points))
        for run in one.group.unfinished:
            part = _points([run], *of)
            shown += part
            lines += [_unfinished_line(one, run, part)] if part else []
    axis, remark = y_axis(shown)
    layout = {
        "xaxis": {
            "title": {"text": x_unit if x_unit == "epoch" else f"{x_unit} of training"},
            "rangemode": "tozero",
            "unifiedhovertitle": {"text": f"{x_unit} %{{x}}"},
        },
        "yaxis": axis,
        "hovermode": "x unified" if x_unit == "epoch" else "closest",  # at one time, methods are at different epochs
    }
    reading = (["Mean of the seeds, band from lowest to highest"] if bands else []) + remark
    ends = [f"{html.unescape(line['meta']['name'])} ends at {line['y'][-1]:.4g}" for line in lines]
    return Chart(title, "; ".join(reading), f"{title}. {'; '.join(ends)}.", bands + lines, layout)


@dataclass(frozen=True)
class _Point:
    progress: float
    x: float
    mean: float
    low: float
    high: float
    n: int


def _points(runs: Sequence[RunRecord], x: Pick, y: Pick) -> list[_Point]:
    found: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for line in run.epochs:
            pair = x(line), y(line)
            if pair[0] is not None and pair[1] is not None:
                found.setdefault(line["epoch"], []).append((pair[0], pair[1]))
    last = max(found, default=1)
    points = []
    for epoch in sorted(found):
        across = fmean(pair[0] for pair in found[epoch])
        ups = [pair[1] for pair in found[epoch]]
        points.append(_Point(epoch / last, across, fmean(ups), min(ups), max(ups), len(ups)))
    return points


def _band(one: Drawn, points: Sequence[_Point]) -> Trace:
    across = [point.x for point in points]
    edge = [point.high for point in points] + [point.low for point in reversed(points)]
    red, green, blue = (int(one.colour[i : i + 2], 16) for i in (1, 3, 5))
    return one.trace(
        type="scatter",
        mode="lines",
        x=across + across[::-1],
        y=edge,
        fill="toself",
        fillcolor=f"rgba({red}, {green}, {blue}, 0.18)",
        line={"width": 0},
        hoverinfo="skip",
    )


def _mean_line(one: Drawn, points: Sequence[_Point]) -> Trace:
    return one.trace(
        type="scatter",
        mode="lines" if len(points) > 1 else "markers",
        x=[point.x for point in points],
        y=[point.mean for point in points],
        customdata=[[point.low, point.high, point.n] for point in points],
        hovertemplate="%{meta.name} %{y:.4g} (%{customdata[0]:.4g} to %{customdata[1]:.4g}, n = %{customdata[2]})"
        "<extra></extra>",
        line={"color": one.colour, "width": 2},
        marker={"color": one.colour, "size": 8},
    )


def _unfinished_line(one: Drawn, run: RunRecord, points: Sequence[_Point]) -> Trace:
    return one.trace(
        type="scatter",
        mode="lines" if len(points) > 1 else "markers",
        x=[point.x for point in points],
        y=[point.mean for point in points],
        hovertemplate="%{meta.name} %{y:.4g} (unfinished, seed " + str(run.seed) + ")<extra></extra>",
        line={"color": one.colour, "width": 1.25, "dash": "dot"},
        marker={"color": one.colour, "size": 6, "symbol": "circle-open"},
    )


Axis = Callable[[Sequence[_Point]], tuple[dict[str, Any], list[str]]]
"""Points -> an axis on which the ends of the curves can be told apart, and what the reader must know about it."""


def _loss_axis(points: Sequence[_Point]) -> tuple[dict[str, Any], list[str]]:
    lowest, highest = _extent(points)
    wide = 0 < 20 * lowest < highest
    return (_log_axis(lowest, highest), ["log scale"]) if wide else _settled_axis(points)


def _settled_axis(points: Sequence[_Point]) -> tuple[dict[str, Any], list[str]]:
    lowest, highest = _extent(points)
    settled = [point for point in points if point.progress > 0.25] or points
    low, high = _extent(settled)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1
    cut = lowest < low - margin or highest > high + margin
    return {"range": [low - margin, high + margin]}, ["the steep start is cut off"] if cut else []


def _extent(points: Sequence[_Point]) -> tuple[float, float]:
    return min((point.low for point in points), default=0), max((point.high for point in points), default=0)


def _log_axis(lowest: float, highest: float) -> dict[str, Any]:
    decades = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    steps = (1, 2, 5) if len(decades) < 5 else (1,)
    return {
        "type": "log",
        "tickvals": [step * 10.0**decade for decade in decades for step in steps],
        "tickformat": "~g",
    }


def _speed(drawn: Sequence[Drawn]) -> Chart:
    timed = [(one, one.row.images_per_second.mean) for one in drawn if one.row.images_per_second is not None]
    reached = {one.key: one.row.accuracy for one, _ in timed}
    tops = {key: "" if spread is None else f"{100 * spread.mean:.1f} %" for key, spread in reached.items()}
    traces = [
        one.trace(
            type="bar",
            x=[html.escape(one.group.name)],
            y=[speed],
            text=[tops[one.key]],
            texttemplate="<b>%{text}</b>",
            textposition="outside",
            cliponaxis=False,
            marker={"color": one.colour},
            width=0.62,
            hovertemplate="%{meta.name}: %{y:,.4~g} images/s, test accuracy %{text}<extra></extra>",
        )
        for one, speed in timed
    ]
    label = "; ".join(f"{one.group.name} {speed:,.0f} images a second at {tops[one.key]}" for one, speed in timed)
    layout = {
        "xaxis": {"type": "category", "showgrid": False},
        "yaxis": {"range": [0, 1.16 * max((speed for _, speed in timed), default=1)], "tickformat": ",~r"},
        "hovermode": "closest",
    }
    reading = "Bars: training images a second; on top: test accuracy after the last epoch"
    return Chart("Speed and accuracy", reading, f"Speed and accuracy. {label}.", traces, layout)


def _sharpness(drawn: Sequence[Drawn]) -> Chart:
    traces, labels, values = [], [], []
    for one in drawn:
        if one.row.sharpness is None:
            continue
        found = [(run.seed, run.end.get("sharpness")) for run in one.group.finished if run.end]
        ends = [(seed, value) for seed, value in found if value is not None]
        mean, name = one.row.sharpness.mean, html.escape(one.group.name)
        values += [value for _, value in ends] + [mean]
        labels.append(f"{one.group.name} {mean:.4g}")
        common = {"type": "scatter", "mode": "markers"}
        traces.append(
            one.trace(
                **common,
                x=[name],
                y=[mean],
                marker={
                    "color": one.colour,
                    "symbol": "line-ew-open",
                    "size": min(30, 200 // len(drawn)),
                    "line": {"width": 2},
                },
                hovertemplate="%{meta.name}: mean %{y:.4g}<extra></extra>",
            )
        )
        traces.append(
            one.trace(
                **common,
                x=[name] * len(ends),
                y=[value for _, value in ends],
                customdata=[seed for seed, _ in ends],
                marker={"color": one.colour, "size": 9, "opacity": 0.75},
                hovertemplate="%{meta.name}, seed %{customdata}: %{y:.4g}<extra></extra>",
            )
        )
    wide = bool(values) and 0 < 20 * min(values) < max(values)
    layout = {
        "xaxis": {"type": "category", "showgrid": False},
        "yaxis": _log_axis(min(values), max(values)) if wide else {"rangemode": "tozero"},
        "hovermode": "closest",
    }
    reading = "One dot a seed, a line for the mean; lower is flatter"
    return Chart("Sharpness", reading, f"Sharpness. {'; '.join(labels)}.", traces, layout)
