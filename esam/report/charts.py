"""What is drawn of a comparison? Plotly figures as plain data; report.js adds what all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from esam.report.measured import Measured
from esam.report.summaries import MethodSummary
from esam.styles import MethodStyle
from esam.train.record import RunRecord

PlotlyTrace = dict[str, Any]
Drawn = tuple[MethodSummary, MethodStyle]

BANDS = 3
"""Methods that are shown with their bands; of more, they would hide one another. report.js has it, too."""
STEEP = 20
"""Values whose highest is more than this many times their lowest are drawn on a logarithmic axis."""
LOG_AXIS = {"type": "log", "dtick": "D2", "tickformat": "~g"}
UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))


@dataclass(frozen=True)
class Chart:
    """One figure: heading, how to read it, and what plotly draws. The tables have the numbers in words."""

    title: str
    reading: str
    traces: list[PlotlyTrace]
    layout: dict[str, Any]
    wide: bool = False
    """Whether it takes the whole width of the page."""


def charts(drawn: Sequence[Drawn]) -> list[Chart]:
    """Return the charts of a comparison that have something to show; the first answers who won at what price."""
    made = [
        _price(drawn),
        _curves(drawn, "Test accuracy against epochs, %", "epoch", "test_accuracy"),
        _curves(drawn, "Test accuracy against the clock, %", "seconds", "test_accuracy"),
        _curves(drawn, "Training loss against epochs", "epoch", "train_loss"),
        _curves(drawn, "Test loss against epochs", "epoch", "test_loss"),
        _sharpness(drawn),
    ]
    return [chart for chart in made if chart.traces]


def _unit(longest: float) -> tuple[str, int]:
    return next((unit for unit in UNITS if longest >= 3 * unit[1]), UNITS[-1])


def _price(drawn: Sequence[Drawn]) -> Chart:
    """Show accuracy, or test loss, against time, with the spread of both; the front joins what none beats in both."""
    classes = any(summary.accuracy is not None for summary, _ in drawn)
    alike = [(summary, style) for summary, style in drawn if (summary.accuracy is not None) == classes]
    placed = [(summary.time, summary.score, style) for summary, style in alike if summary.time and summary.score]
    unit, length = _unit(max((time.mean for time, *_ in placed), default=0))
    traces = []
    for time, score, style in placed:
        x, y = time.times(1 / length), score.times(1 if classes else -1)
        bars: dict[str, Any] = {"error_x": _error(x, style), "error_y": _error(y, style)}
        marker = {"color": style.colour, "size": 12}
        hover = f"%{{meta.name}}: %{{y:.4g}} at %{{x:.3g}} {unit}"
        traces.append(style.trace(hover, end=True, x=[x.mean], y=[y.mean], mode="markers", marker=marker, **bars))
    front: list[tuple[float, float]] = []
    for seconds, best in sorted((time.mean, score.mean) for time, score, _ in placed):
        if not front or best > front[-1][1]:
            front.append((seconds, best))
    if len(front) > 1:
        line = {"color": "rgba(128, 128, 128, 0.7)", "width": 1.5, "dash": "dot", "shape": "hv"}
        steps = {"x": [x / length for x, _ in front], "y": [y if classes else -y for _, y in front]}
        meta = {"group": "", "name": "front"}
        traces.insert(0, {"meta": meta, "hoverinfo": "skip", "mode": "lines", "line": line, **steps})
    kind = "processor time" if drawn and drawn[0][0].processor_time else "training time"
    layout = {
        "xaxis": {"title": {"text": f"{kind}, {unit}"}, "rangemode": "tozero", "showgrid": True},
        "yaxis": {"title": {"text": "test accuracy, %" if classes else "test loss"}},
        "hovermode": "closest",
    }
    better = "Up" if classes else "Down"
    reading = f"{better} and to the left is better; bars: one standard deviation over seeds; dotted: the front"
    return Chart("What it gives and what it costs", reading, traces, layout, wide=True)


def _error(measured: Measured, style: MethodStyle) -> dict[str, Any]:
    shown = {"array": [measured.std or 0], "visible": bool(measured.std)}
    return {"type": "data", "color": style.colour, "width": 3, **shown}


def _sharpness(drawn: Sequence[Drawn]) -> Chart:
    line = {"symbol": "line-ew-open", "size": min(30, 200 // max(1, len(drawn))), "line": {"width": 2}}
    traces: list[PlotlyTrace] = []
    values: list[float] = []
    for summary, style in drawn:
        if summary.sharpness is not None:
            dots = {f"seed {seed}": value for seed, value in summary.by_seed("sharpness").items() if value is not None}
            for points, look in (({"mean": summary.sharpness.mean}, line), (dots, {"size": 9, "opacity": 0.75})):
                trace = style.trace("%{meta.name}, %{customdata}: %{y:.4g}", mode="markers", y=list(points.values()))
                marker = {"color": style.colour, **look}
                traces.append({**trace, "x": [style.label] * len(points), "customdata": list(points), "marker": marker})
            values += dots.values()
    axis = {"type": "category", "showgrid": False, "tickangle": 0 if len(drawn) < 5 else 35}
    layout = {"xaxis": axis, "yaxis": LOG_AXIS if _steep(values) else {"rangemode": "tozero"}, "hovermode": "closest"}
    return Chart("Sharpness", "One dot a seed, a line for the mean; lower is flatter", traces, layout)


def _steep(values: Sequence[float]) -> bool:
    return bool(values) and 0 < STEEP * min(values) < max(values)


# quantities from epoch to epoch: one line a method, and one a run that is unfinished


class _Point(NamedTuple):
    x: float
    mean: float
    low: float
    high: float
    n: int


def _curves(drawn: Sequence[Drawn], title: str, x: str, y: str) -> Chart:
    """Draw a quantity of each epoch: the mean of the seeds, with a band from the lowest to the highest."""
    lines = [line for summary, _ in drawn for run in summary.runs for line in run.epochs]
    unit, length = _unit(max((line.get("seconds") or 0 for line in lines), default=0))
    factor = {"seconds": 1 / length, "test_accuracy": 100}
    bands, curves, every, late = [], [], [], []
    for summary, style in drawn:
        for runs in (summary.finished, *((run,) for run in summary.unfinished)):
            if points := _points(runs, x, y, factor):
                every += points
                late += points[len(points) // 4 :]
                curves.append(_line(style, points, runs))
                bands += [_band(style, points)] if len(runs) > 1 else []
    remarks = []
    if any(point.low < point.high for point in every):
        some = f" where {BANDS} methods or fewer are shown" if len(drawn) > BANDS else ""
        remarks.append(f"mean of the seeds, band from lowest to highest{some}")
    axis: dict[str, Any] = LOG_AXIS
    if y.endswith("loss") and _steep([value for point in every for value in (point.low, point.high)]):
        remarks.append("log scale")
    elif every:
        low, high = min(point.low for point in late), max(point.high for point in late)
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 1
        axis = {"range": [low - margin, high + margin]}
        if any(point.low < low - margin or point.high > high + margin for point in every):
            remarks.append("the steep start is cut off")
    x_title = f"{unit} of training" if x == "seconds" else x
    across = {"title": {"text": x_title}, "rangemode": "tozero", "unifiedhovertitle": {"text": f"{x_title} %{{x}}"}}
    # at one time, methods are at different epochs
    layout = {"xaxis": across, "yaxis": axis, "hovermode": "x unified" if x == "epoch" else "closest"}
    reading = "; ".join(remarks)
    return Chart(title, reading[:1].upper() + reading[1:], bands + curves, layout)


def _points(runs: Sequence[RunRecord], x: str, y: str, factor: Mapping[str, float]) -> list[_Point]:
    by_epoch: dict[int, list[tuple[float, float]]] = {}
    for line in (line for run in runs for line in run.epochs):
        if line.get(x) is not None and line.get(y) is not None:
            by_epoch.setdefault(line["epoch"], []).append((factor.get(x, 1) * line[x], factor.get(y, 1) * line[y]))
    points = []
    for _, pairs in sorted(by_epoch.items()):
        across, ups = zip(*pairs, strict=True)
        points.append(_Point(fmean(across), fmean(ups), min(ups), max(ups), len(ups)))
    return points


def _band(style: MethodStyle, points: Sequence[_Point]) -> PlotlyTrace:
    across = [point.x for point in points]
    edge = [point.high for point in points] + [point.low for point in reversed(points)]
    colour = "rgba({}, {}, {}, 0.15)".format(*bytes.fromhex(style.colour[1:]))
    shape: dict[str, Any] = {"x": across + across[::-1], "y": edge, "mode": "lines", "line": {"width": 0}}
    return style.trace("", band=True, hoverinfo="skip", fill="toself", fillcolor=colour, **shape)


def _line(style: MethodStyle, points: Sequence[_Point], runs: Sequence[RunRecord]) -> PlotlyTrace:
    finished = runs[0].finished
    extent = "%{customdata[0]:.4g} to %{customdata[1]:.4g}, n = %{customdata[2]}"
    what = extent if len(runs) > 1 else f"{'' if finished else 'unfinished, '}seed {runs[0].seed}"
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
