"""How does a quantity change from epoch to epoch? One line a method, or one a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from esam.report.charts import LOG_AXIS, STEEP, Chart, Drawn, PlotlyTrace
from esam.train.record import RunRecord

Style = dict[str, dict[str, Any]]

FINISHED: Style = {"line": {"width": 2}, "marker": {"size": 8}}
ALONE: Style = {"line": {"width": 1.5}, "marker": {"size": 7}}
UNFINISHED: Style = {"line": {"width": 1.25, "dash": "dot"}, "marker": {"size": 6, "symbol": "circle-open"}}


def histories(drawn: Sequence[Drawn]) -> list[Chart]:
    """Give the charts of accuracy, losses and learning rate."""
    lines = [line for one in drawn for run in one.summary.group.runs for line in run.epochs]
    longest = max((line.get("seconds") or 0 for line in lines), default=0)
    unit, length = next((u for u in (("hours", 3600), ("minutes", 60)) if longest >= 3 * u[1]), ("seconds", 1))
    epoch, time = Quantity("epoch"), Quantity("seconds", 1 / length)
    accuracy = Quantity("test_accuracy", 100)
    return [
        curves(drawn, "Test accuracy against epochs, %", (epoch, accuracy), "epoch", settled_axis),
        curves(drawn, "Test accuracy against training time, %", (time, accuracy), unit, settled_axis),
        curves(drawn, "Training loss against epochs", (epoch, Quantity("train_loss")), "epoch", loss_axis),
        curves(drawn, "Test loss against epochs", (epoch, Quantity("test_loss")), "epoch", loss_axis),
        curves(drawn, "Learning rate against epochs", (epoch, Quantity("lr")), "epoch", _whole_axis),
    ]


class Quantity(NamedTuple):
    """A number of an epoch's line, and what it is multiplied by."""

    key: str
    factor: float = 1


def curves(drawn: Sequence[Drawn], title: str, of: tuple[Quantity, Quantity], x_unit: str, y_axis: Axis) -> Chart:
    """Draw a quantity of each epoch: the mean of the seeds with a band, and on demand a line for each seed."""
    bands, lines, shown, ends = [], [], [], []
    for one in drawn:
        for runs in (one.summary.group.finished, *((run,) for run in one.summary.group.unfinished)):
            if points := _points(runs, *of):
                shown += points
                ends.append(f"{one.summary.name} ends at {points[-1].mean:.4g}")
                averaged = {"of": "mean"} if len(runs) > 1 else {}
                style = FINISHED if runs[0].finished else UNFINISHED
                lines.append(_marked(_line(one, points, runs, style), averaged))
                bands += [_marked(_band(one, points), averaged)] if averaged else []
                lines += [
                    {**_marked(_line(one, alone, [run], ALONE), {"of": "seed"}), "visible": False}
                    for run in runs
                    if averaged and (alone := _points([run], *of))
                ]
    axis, remark = y_axis(shown)
    x_title = x_unit if x_unit == "epoch" else f"{x_unit} of training"
    layout = {
        "xaxis": {"title": {"text": x_title}, "rangemode": "tozero", "unifiedhovertitle": {"text": f"{x_unit} %{{x}}"}},
        "yaxis": axis,
        "hovermode": "x unified" if x_unit == "epoch" else "closest",  # at one time, methods are at different epochs
    }
    differ = any(point.low < point.high for point in shown)
    told = "; ".join((["mean of the seeds, band from lowest to highest"] if bands and differ else []) + remark)
    whole = f"{title}. {'; '.join(ends)}."
    reading = told[:1].upper() + told[1:]
    return Chart(title, reading, whole, bands + lines, layout, log=y_axis in (loss_axis, _whole_axis))


def _marked(trace: PlotlyTrace, more: dict[str, str]) -> PlotlyTrace:
    """Return a trace that the switch between seeds and their mean knows."""
    return {**trace, "meta": {**trace["meta"], **more}}


class _Point(NamedTuple):
    progress: float
    x: float
    mean: float
    low: float
    high: float
    n: int


def _points(runs: Sequence[RunRecord], x: Quantity, y: Quantity) -> list[_Point]:
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


def _line(one: Drawn, points: Sequence[_Point], runs: Sequence[RunRecord], style: Style) -> PlotlyTrace:
    spread = "%{customdata[0]:.4g} to %{customdata[1]:.4g}, n = %{customdata[2]}"
    told = spread if len(runs) > 1 else f"{'' if runs[0].finished else 'unfinished, '}seed {runs[0].seed}"
    return one.trace(
        f"%{{meta.name}} %{{y:.4g}} ({told})",
        mode="lines" if len(points) > 1 else "markers",
        x=[point.x for point in points],
        y=[point.mean for point in points],
        customdata=[[point.low, point.high, point.n] for point in points],
        **{key: {"color": one.colour, **style[key]} for key in style},
    )


Axis = Callable[[Sequence[_Point]], tuple[dict[str, Any], list[str]]]
"""Points -> an axis on which the ends of the curves can be told apart, and what the reader must know about it."""


def loss_axis(points: Sequence[_Point]) -> tuple[dict[str, Any], list[str]]:
    """Give an axis for values above zero, logarithmic where they fall far."""
    lowest, highest = _extent(points)
    return (LOG_AXIS, ["log scale"]) if 0 < STEEP * lowest < highest else settled_axis(points)


def settled_axis(points: Sequence[_Point]) -> tuple[dict[str, Any], list[str]]:
    """Give an axis that shows where the curves end, and may cut their start."""
    lowest, highest = _extent(points)
    low, high = _extent([point for point in points if point.progress > 0.25] or points)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1
    cut = lowest < low - margin or highest > high + margin
    return {"range": [low - margin, high + margin]}, ["the steep start is cut off"] if cut else []


def _whole_axis(points: Sequence[_Point]) -> tuple[dict[str, Any], list[str]]:
    at: dict[float, set[float]] = {}
    for point in points:
        at.setdefault(point.x, set()).update((point.low, point.high))
    alike = len(points) > len(at) and all(len(values) == 1 for values in at.values())
    return {"rangemode": "tozero"}, ["the same for all methods"] if alike else []


def _extent(points: Sequence[_Point]) -> tuple[float, float]:
    return min((point.low for point in points), default=0), max((point.high for point in points), default=0)
