"""What is drawn of a search? History, slices, importances and the front, as the report draws."""

from __future__ import annotations

import html
import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from esam.report.charts import LOG_AXIS, Chart, PlotlyTrace

from .objectives import Objective
from .search import Search

FEWEST = 4
"""Trials from which on an importance says something."""
DOTS = {"size": 8, "opacity": 0.8}


class Palette:
    """The key and the colour of each method that was tried."""

    def __init__(self, colours: dict[str, str]) -> None:
        self.colours = colours
        self.keys = {name: f"g{number}" for number, name in enumerate(colours)}

    def trace(self, method: str, hover: str, **parts: Any) -> PlotlyTrace:
        """Return a trace that the method's chip switches."""
        meta = {"group": self.keys[method], "name": html.escape(method)}
        return {"meta": meta, "hovertemplate": f"{hover}<extra></extra>", **parts}

    def dots(self, method: str, trials: Sequence[FrozenTrial], x: Sequence[Any], y: Sequence[float]) -> PlotlyTrace:
        """Return a dot for each trial."""
        marker = {"color": self.colours[method], **DOTS}
        numbers = [trial.number for trial in trials]
        hover = "trial %{customdata}, %{meta.name}: %{y:.4g}"
        return self.trace(method, hover, mode="markers", x=list(x), y=list(y), customdata=numbers, marker=marker)


def search_charts(search: Search, done: Sequence[FrozenTrial], study: Any, palette: Palette) -> list[Chart]:
    """Return the charts of the trials that came to their values."""
    judges = search.judges
    charts = [_history(judge, place, done, search, palette) for place, judge in enumerate(judges)]
    if len(judges) > 1:
        charts.insert(0, _front(judges, done, study, search, palette))
    else:
        charts += _importances(done, study, palette)
    return charts + [_slice(d.name, d.log, judges[0], done, search, palette) for d in search.space.dimensions]


def method_of(trial: FrozenTrial, search: Search) -> str:
    """Return the method that a trial ran."""
    return str(trial.params.get("method", search.config.method))


def best_so_far(values: Sequence[float], direction: str) -> list[float]:
    """Return the best value up to each."""
    better, found = (max if direction == "maximize" else min), list[float]()
    for value in values:
        found.append(better([value, *found[-1:]]))
    return found


def _by_method(done: Sequence[FrozenTrial], search: Search) -> dict[str, list[FrozenTrial]]:
    found: dict[str, list[FrozenTrial]] = {}
    for trial in done:
        found.setdefault(method_of(trial, search), []).append(trial)
    return found


def _history(judge: Objective, place: int, done: Sequence[FrozenTrial], search: Search, palette: Palette) -> Chart:
    values = [trial.values[place] for trial in done]
    best = best_so_far(values, judge.direction)
    groups = _by_method(done, search).items()
    traces = [palette.dots(name, ts, [t.number for t in ts], [t.values[place] for t in ts]) for name, ts in groups]
    line = {"color": "#888888", "width": 2, "shape": "hv"}
    first = next(iter(palette.colours))
    traces.append(
        palette.trace(first, "best so far: %{y:.4g}", mode="lines", x=[t.number for t in done], y=best, line=line)
    )
    label = f"{judge.title} by trial. Best of {len(done)}: {best[-1]:.4g}." if best else judge.title
    layout = {"xaxis": {"title": {"text": "trial"}}, "yaxis": {}, "hovermode": "closest"}
    return Chart(f"{judge.title}: history", "One dot a trial; the line is the best so far", label, traces, layout)


def _slice(
    name: str, log: bool, judge: Objective, done: Sequence[FrozenTrial], search: Search, palette: Palette
) -> Chart:
    having = [trial for trial in done if name in trial.params]
    traces, words = [], False
    for method, trials in _by_method(having, search).items():
        across = [trial.params[name] for trial in trials]
        words = words or any(isinstance(value, str) for value in across)
        traces.append(palette.dots(method, trials, across, [trial.values[0] for trial in trials]))
    axis: dict[str, Any] = {"type": "category"} if words else {**LOG_AXIS} if log else {}
    layout = {"xaxis": {**axis, "title": {"text": name}}, "yaxis": {}, "hovermode": "closest"}
    label = f"{judge.title} against {name}, {len(having)} trials."
    return Chart(f"{judge.title} against {name}", "One dot a trial", label, traces, layout)


def _importances(done: Sequence[FrozenTrial], study: Any, palette: Palette) -> list[Chart]:
    """Return how much of the differences each setting explains; nothing where there is too little to tell by."""
    if len(done) < FEWEST or len({trial.values[0] for trial in done}) < 2:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fanova = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(study, evaluator=fanova)
    if not found:
        return []
    first = next(iter(palette.colours))
    bars = {"type": "bar", "orientation": "h", "marker": {"color": palette.colours[first]}}
    names, shares = list(found)[::-1], [found[name] for name in found][::-1]
    trace = palette.trace(first, "%{y}: %{x:.2f}", x=shares, y=names, **bars)
    told = ", ".join(f"{name} {share:.2f}" for name, share in found.items())
    layout = {"xaxis": {"rangemode": "tozero"}, "yaxis": {"type": "category"}, "hovermode": "closest"}
    reading = "Share of the differences that a setting explains (fANOVA), over the methods that have it"
    return [Chart("Importances", reading, f"Importances: {told}.", [trace], layout)]


def _front(
    judges: Sequence[Objective], done: Sequence[FrozenTrial], study: Any, search: Search, palette: Palette
) -> Chart:
    up, across = judges[0], judges[1]
    traces = [
        palette.dots(name, ts, [t.values[1] for t in ts], [t.values[0] for t in ts])
        for name, ts in _by_method(done, search).items()
    ]
    front = sorted(study.best_trials, key=lambda trial: trial.values[1])
    first = next(iter(palette.colours))
    line = {"x": [t.values[1] for t in front], "y": [t.values[0] for t in front], "line": {"color": "#888888"}}
    marks = {"marker": {"symbol": "circle-open", "size": 13, "color": "#888888"}}
    traces.append(palette.trace(first, "on the front: %{y:.4g}", mode="lines+markers", **line, **marks))
    layout = {"xaxis": {"title": {"text": across.title}}, "yaxis": {}, "hovermode": "closest"}
    title = f"{up.title} against {across.title[0].lower()}{across.title[1:]}"
    told = "; ".join(f"{t.values[0]:.4g} at {t.values[1]:.4g}" for t in front)
    return Chart(
        title, "Ringed: the front, that no other trial beats in all", f"{title}. Front: {told}.", traces, layout
    )
