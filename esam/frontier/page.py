"""How does the map become one HTML page that needs nothing else?"""

from __future__ import annotations

import colorsys
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esam.optim import METHODS
from esam.report import settings
from esam.report.charts import Chart, PlotlyTrace
from esam.report.page import filled_page, provenance
from esam.report.sheets import Sheet
from esam.report.templates import write_html

from .entrants import ENTRANTS
from .standings import Map, Overall, Standing, front, overall, regime_title, standard_error
from .tables import overall_sheet, regime_sheet, regime_words, screening_sheet

PAGE_NAME = "report.html"


@dataclass(frozen=True)
class Mark:
    """An entrant as the page knows it."""

    key: str
    title: str
    colour: str
    is_base: bool

    def trace(self, hover: str, **parts: Any) -> PlotlyTrace:
        """A trace that the entrant's chip switches."""
        # in meta, because plotly would read a name inside a hovertemplate as part of the template
        name = html.escape(self.title)
        return {"meta": {"group": self.key, "name": name}, "hovertemplate": f"{hover}<extra></extra>", **parts}


def write_map(folder: str | Path, found: Map) -> Path:
    """Write the page into the folder of the records and return where it is."""
    marks = marks_of(found)
    records = [run for rows in found.values() for one in rows for run in one.runs]
    page = filled_page(
        title="SAM's accuracy, at which price?",
        lead=_lead(found),
        notes=settings.notes(records),
        chips=[(mark.title, mark.key, mark.colour) for mark in marks.values()],
        sections=[_whole(found, marks), *(_regime(name, rows, marks) for name, rows in found.items()), _dropped(found)],
        common=settings.common_and_differing(records)[0],
        environment=settings.environments(records),
        differing=Sheet("", ("Setting",), ()),
        footer=provenance(records),
    )
    return write_html(Path(folder) / PAGE_NAME, page)


def marks_of(found: Map) -> dict[str, Mark]:
    """Return how each entrant is shown, by its name: in its method's colour, or in a tint of it for a variant."""
    rows = {one.entrant: one for standings in found.values() for one in standings}
    variants: dict[str, int] = {}
    marks = {}
    for number, (name, one) in enumerate(rows.items()):
        own = METHODS[one.method].colour or _hue(number)
        if name != one.method and one.method in rows:
            variants[one.method] = variants.get(one.method, 0) + 1
            own = _tint(own, variants[one.method])
        title = ENTRANTS[name].named("Base") if name in ENTRANTS else one.title
        marks[name] = Mark(f"g{number}", title, own, name == "base")
    return marks


def _hue(number: int) -> str:
    """Return a colour by number; neighbours lie far apart on the wheel."""
    red, green, blue = colorsys.hls_to_rgb(number * (5**0.5 - 1) / 2 % 1, 0.42, 0.45)
    return "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))


def _tint(colour: str, number: int) -> str:
    """Return a colour mixed with white, with black, with more white ..., by the number of the variant from 1."""
    towards, share = (255 if number % 2 else 0), 1 - 0.6 ** ((number + 1) // 2)
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (towards - part)):02x}" for part in parts)


def _lead(found: Map) -> str:
    entrants = {one.entrant for rows in found.values() for one in rows}
    runs = sum(len(one.runs) for rows in found.values() for one in rows)
    return (
        f"{len(entrants)} methods and controls in {len(found)} regimes, {runs} runs on the test sets. Learning rate, "
        "weight decay and radius of each come from the same number of trials on a validation split. Mean ± standard "
        "error over seeds. Cost and passes are counted, time is the processor time of training; all three are relative "
        "to the base optimizer in the same regime. On front: how often nothing as cheap is as accurate, when the "
        "accuracies are drawn anew within their standard errors."
    )


def _whole(found: Map, marks: Mapping[str, Mark]) -> dict[str, Any]:
    rows = overall(found)
    sheet = overall_sheet(rows, "Over all regimes; 95 % intervals of the mean rank by resampling the regimes")
    charts = [
        _ranks(rows, marks, "Mean rank against measured time", "time over the base's", lambda one: one.time),
        _ranks(rows, marks, "Mean rank against counted cost", "cost over the base's", lambda one: one.units),
    ]
    return _section("Over all regimes", "1 is best.", sheet, [marks[one.entrant] for one in rows], charts)


def _regime(name: str, rows: Sequence[Standing], marks: Mapping[str, Mark]) -> dict[str, Any]:
    title = regime_title(name)
    charts = [
        _scatter(rows, marks, "Accuracy against measured time", "time over the base's", lambda one: one.time.mean),
        _scatter(rows, marks, "Accuracy against counted cost", "cost over the base's", lambda one: one.units),
    ]
    drawn = [marks[one.entrant] for one in sorted(rows, key=lambda one: -one.last.mean)]
    sheet = replace(regime_sheet(name, rows), title="Mean ± standard error over n seeds")
    return _section(title, f"{regime_words(name, rows)}.", sheet, drawn, charts)


def _dropped(found: Map) -> dict[str, Any]:
    sheet = screening_sheet(found)
    told = "Test accuracy in percent, with the seed of the screening."
    return _section(sheet.title if sheet.rows else "", told, sheet, [], [])


def _section(
    condition: str, sentences: str, sheet: Sheet, drawn: Sequence[Mark], charts: Sequence[Chart]
) -> dict[str, Any]:
    return {
        "condition": condition,
        "sentences": sentences,
        "sheet": sheet,
        "drawn": drawn,
        "left_out": [],
        "charts": [chart for chart in charts if chart.traces],
    }


def _scatter(
    rows: Sequence[Standing], marks: Mapping[str, Mark], title: str, x_title: str, cost: Callable[[Standing], float]
) -> Chart:
    best = front({one.entrant: (cost(one), one.last.mean) for one in rows})
    named = {one.entrant: one for one in rows}
    traces = [_front_line([(cost(named[name]), named[name].last.mean) for name in best])]
    for one in rows:
        error = {"type": "data", "array": [standard_error(one.last) or 0.0], "thickness": 1, "width": 3}
        symbol = "square-open" if one.control else "circle"
        traces.append(
            marks[one.entrant].trace(
                f"%{{meta.name}}: %{{y:.2f}} % at %{{x:.2f}}, n = {one.last.n}",
                mode="markers",
                x=[cost(one)],
                y=[one.last.mean],
                error_y=error,
                marker={"color": marks[one.entrant].colour, "size": 9, "symbol": symbol},
            )
        )
    told = ", ".join(f"{named[name].title} {named[name].last.mean:.1f} at {cost(named[name]):.2f}" for name in best)
    reading = "Line: the front. Squares: controls. Bars: one standard error"
    layout = {"xaxis": {"title": {"text": x_title}}, "yaxis": {}, "hovermode": "closest"}
    return Chart(title, reading, f"{title}. On the front: {told}.", traces, layout)


def _ranks(
    rows: Sequence[Overall], marks: Mapping[str, Mark], title: str, x_title: str, cost: Callable[[Overall], float]
) -> Chart:
    named = {one.entrant: one for one in rows}
    best = front({one.entrant: (cost(one), -one.rank.mean) for one in rows})
    traces = [_front_line([(cost(named[name]), named[name].rank.mean) for name in best])] if rows else []
    for one in rows:
        low, high = one.interval
        error = {"array": [high - one.rank.mean], "arrayminus": [one.rank.mean - low], "symmetric": False}
        symbol = "square-open" if one.control else "circle"
        traces.append(
            marks[one.entrant].trace(
                "%{meta.name}: mean rank %{y:.1f} at %{x:.2f}",
                mode="markers",
                x=[cost(one)],
                y=[one.rank.mean],
                error_y={"type": "data", "thickness": 1, "width": 3, **error},
                marker={"color": marks[one.entrant].colour, "size": 9, "symbol": symbol},
            )
        )
    told = ", ".join(f"{named[name].title} {named[name].rank.mean:.1f} at {cost(named[name]):.2f}" for name in best)
    layout = {"xaxis": {"title": {"text": x_title}}, "yaxis": {"autorange": "reversed"}, "hovermode": "closest"}
    reading = "Line: the front. Squares: controls. Bars: 95 % intervals"
    return Chart(title, reading, f"{title}. On the front: {told}.", traces, layout)


def _front_line(points: Sequence[tuple[float, float]]) -> PlotlyTrace:
    return {
        "meta": {"group": "front", "name": "front"},
        "mode": "lines",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"shape": "hv", "width": 1.5, "color": "#8a94a0"},
        "hoverinfo": "skip",
    }
