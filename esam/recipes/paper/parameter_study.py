"""The parameter study: ESAM-SWP over beta and ESAM-SDS over gamma, .3 to .9, accuracy against speed.

Paper: ResNet-18 and WRN-28-10 on both CIFARs. CPU scale: WRN-10-1 on CIFAR-10, one seed for each of four values.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Row, Values
from esam.reproduce.scale import Scale, Task, words
from esam.reproduce.store import Found

from .common import COLOURS, THREE, rows_of, slug, told, with_settings
from .timing import table_values

STUDIES = {"ESAM-SWP": ("esam-swp", "beta", 0.6), "ESAM-SDS": ("esam-sds", "gamma", 0.5)}
"""The method, its parameter, and the method's default for it."""


def needs(scale: Scale) -> Needs:
    """Return a run for each beta and each gamma, and Table 1's runs beside them."""
    rows: list[Row] = []
    for task in scale.study:
        rows += rows_of(task, scale.cifar[task], THREE)
        for label in STUDIES:
            rows += _studied(scale, task, label)
    return Needs(rows=tuple(rows), sizes={"beta and gamma": ", ".join(map(str, scale.study_shares))})


def _studied(scale: Scale, task: Task, label: str) -> list[Row]:
    (method, parameter, default), comparison = STUDIES[label], scale.cifar[task]
    rows = []
    for share in scale.study_shares:
        # a run that leaves the parameter to its default is the ablation's, and is shared
        value = None if getattr(comparison.config, parameter) is None and share == default else share
        one = dataclasses.replace(with_settings(comparison, **{parameter: value}), seeds=scale.study_seeds)
        row = rows_of(task, one, (method,))[0]
        rows.append(dataclasses.replace(row, label=_name(label, share)))
    return rows


def analyse(found: Found) -> Values:
    """Return accuracy and speed for every value, and of SGD, SAM and ESAM."""
    return {**table_values(found), "shares": list(found.scale.study_shares)}


def sheets(measured: Values) -> list[Sheet]:
    """Return one table a task: beta and gamma side by side."""
    every = []
    for task in measured["tasks"]:
        lines = []
        for share in measured["shares"]:
            cells = [_cells(measured, task, _name(label, share)) for label in STUDIES]
            lines.append((f"{share:g}", *cells[0], *cells[1]))
        lines += [(label, *_cells(measured, task, label), "", "") for label in ("SGD", "SAM", "ESAM")]
        head = ("beta / gamma", "SWP: accuracy, %", "images/s", "SDS: accuracy, %", "images/s")
        every.append(Sheet(measured["titles"][task], head, tuple(lines)))
    return every


def _cells(measured: Values, task: str, label: str) -> tuple[str, str]:
    speed = measured["timed"][task][label]["images_per_second"]
    return told(measured["tasks"][task][label]["accuracy"], 2), f"{speed:,.0f}"


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw accuracy against speed: connected dots for the studies, isolated ones for SGD, SAM and ESAM."""
    from esam.analysis.plot import Dot, dots

    written = []
    for task in measured["tasks"]:

        def dot(label: str, words: str = "", task: str = task) -> Dot:
            speed, own = measured["timed"][task][label], measured["tasks"][task][label]
            return Dot(speed["images_per_second"], own["accuracy"]["mean"], words)

        connected = {
            f"{label}, {STUDIES[label][1]} .3 to .9": [
                dot(_name(label, share), f"{share:g}") for share in measured["shares"]
            ]
            for label in STUDIES
        }
        isolated = {label: dot(label) for label in ("SGD", "SAM", "ESAM")}
        written += dots(
            path.with_name(f"{path.name}-{slug(task)}"),
            connected,
            isolated,
            colours={**COLOURS, **{name: COLOURS[name.split(",")[0]] for name in connected}},
            x_label="training speed, images/s",
            y_label="test accuracy, %",
            title=measured["titles"][task],
        )
    return written


def _name(label: str, share: float) -> str:
    return f"{label} {share:g}"


ITEM = Item(
    name="parameter-study",
    number="Figure 3",
    title="Parameter study of SWP's beta and SDS's gamma",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper={
        "interval": [0.3, 0.9],
        "step": 0.1,
        "best beta": {words(("ResNet-18", "CIFAR-10")): 0.6, words(("WRN-28-10", "CIFAR-10")): 0.5},
        "smallest good gamma": 0.5,
    },
    notes=(
        "The paper prints no numbers for this figure beyond its choice of beta = .6 (.5 on WRN-28-10), gamma = .5.",
    ),
)
