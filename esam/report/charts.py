"""What is drawn of a section? Plotly figures as plain data; report.js adds what all of them share."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from esam.report.summaries import MethodSummary

PlotlyTrace = dict[str, Any]

CLASSES = 30
"""Classes that a chart has room for."""
STEEP = 20
"""Values whose highest is more than this many times their lowest are drawn on a logarithmic axis."""
LOG_AXIS = {"type": "log", "dtick": "D2", "tickformat": "~g"}


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
    log: bool = False
    """Whether a logarithmic axis makes sense, so that the reader may turn it on and off."""
    wide: bool = False
    """Whether it takes the whole width of the page."""


def endings(drawn: Sequence[Drawn]) -> list[Chart]:
    """Give the charts of what the methods came to in the end."""
    return [_speed(drawn), _sharpness(drawn), _by_class(drawn)]


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
    return Chart("Sharpness", reading, f"Sharpness. {'; '.join(told)}.", traces, layout, log=True)


def _by_class(drawn: Sequence[Drawn]) -> Chart:
    """Show the test accuracy on each class; of many classes, those that are hardest on the mean."""
    means = {one.key: found for one in drawn if (found := _class_means(one))}
    names = next((run.data.get("classes") for one in drawn for run in one.summary.group.runs if run.data), None) or []
    every = sorted({number for found in means.values() for number in found})
    hardness = {number: fmean(found[number] for found in means.values() if number in found) for number in every}
    hardest = sorted(hardness, key=lambda number: hardness[number])[:CLASSES]
    label = {n: str(names[n]) if n < len(names) else f"class {n}" for n in sorted(hardest)}
    traces, told = [], []
    for place, one in enumerate(drawn):
        ups = {number: 100 * means[one.key][number] for number in label if number in means.get(one.key, {})}
        if ups:
            worst = min(ups, key=lambda number: ups[number])
            told.append(f"{one.summary.name} is lowest on {label[worst]}, {ups[worst]:.1f} %")
            # side by side, as equal values would hide one another
            aside = 0.5 * ((place + 0.5) / len(drawn) - 0.5)
            across = [list(label).index(number) + aside for number in ups]
            words = [html.escape(label[number]) for number in ups]
            marker = {"color": one.colour, "size": max(5, 10 - len(label) // 6)}
            marks = {"x": across, "y": list(ups.values()), "customdata": words, "mode": "markers", "marker": marker}
            traces.append(one.trace("%{meta.name}, %{customdata}: %{y:.4g} %", **marks))
    title, rest = "Test accuracy on each class, %", f"; the {CLASSES} hardest of {len(hardness)} classes"
    reading = f"After the last epoch, mean of the seeds{rest if len(hardness) > CLASSES else ''}"
    ticks = {"tickvals": list(range(len(label))), "ticktext": [html.escape(word) for word in label.values()]}
    layout = {"xaxis": {"range": [-0.5, len(label) - 0.5], **ticks}, "yaxis": {}, "hovermode": "closest"}
    return Chart(title, reading, f"{title}. {'; '.join(told)}.", traces, layout, wide=True)


def _class_means(one: Drawn) -> dict[int, float]:
    """Return the accuracy on each class, averaged over the seeds that tell it."""
    ends = [
        run.end["class_accuracy"] for run in one.summary.group.finished if run.end and run.end.get("class_accuracy")
    ]
    columns = [[v for v in column if v is not None] for column in zip(*ends, strict=False)]
    return {number: fmean(column) for number, column in enumerate(columns) if column}


def _marks(one: Drawn, values: Mapping[str, float], marker: dict[str, Any]) -> PlotlyTrace:
    across, ups = [one.label] * len(values), list(values.values())
    named = {"customdata": list(values), "marker": {"color": one.colour, **marker}}
    return one.trace("%{meta.name}, %{customdata}: %{y:.4g}", mode="markers", x=across, y=ups, **named)


def _by_method(y_axis: dict[str, Any]) -> dict[str, Any]:
    return {"xaxis": {"type": "category", "showgrid": False}, "yaxis": y_axis, "hovermode": "closest"}
