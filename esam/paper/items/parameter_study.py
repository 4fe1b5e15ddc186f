"""The parameter study: ESAM-SWP over beta and ESAM-SDS over gamma, .3 to .9, accuracy against speed.

Paper: ResNet-18 and WRN-28-10 on both CIFARs. CPU scale: WRN-10-1 on CIFAR-10, one seed for each of four values.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from esam.analysis.plot import Dot, dots
from esam.optim import METHODS
from esam.report.colours import SPARE
from esam.report.sheets import Sheet

from ..engine.item import Item, MethodRuns, Needs, runs_of
from ..engine.scale import ExperimentScale, PaperTask
from ..engine.values import number, slug
from .table1 import PAPER
from .tables import THREE, MethodFigures, TableFigures, table_figures

PARAMETERS = {"esam-swp": "beta", "esam-sds": "gamma"}


def needs(scale: ExperimentScale) -> Needs:
    """Return a run for each beta and each gamma, and Table 1's runs beside them."""
    runs: list[MethodRuns] = []
    for task in scale.study:
        runs += runs_of(task, scale.comparisons[task], THREE)
        runs += [_studied(scale, task, method, share) for method in PARAMETERS for share in scale.study_shares]
    return Needs(runs=tuple(runs), sizes={"beta, gamma": ", ".join(map(str, scale.study_shares))})


def _studied(scale: ExperimentScale, task: PaperTask, method: str, share: float) -> MethodRuns:
    comparison = scale.comparisons[task]
    own = {**comparison.settings.get(method, {}), PARAMETERS[method]: share}
    changed = dataclasses.replace(comparison, seeds=scale.study_seeds, settings={**comparison.settings, method: own})
    (runs,) = runs_of(task, changed, (method,))
    return dataclasses.replace(runs, share=share)


def sheets(measured: TableFigures) -> list[Sheet]:
    """Return one table a workload."""
    head = ("Method", "Accuracy, %", "Training, %", "Images/s", "n")
    return [Sheet(one.workload.title, head, tuple(map(_cells, one.methods))) for one in measured.workloads]


def _cells(own: MethodFigures) -> tuple[str, ...]:
    name = own.label if own.share is None else f"{own.label}, {PARAMETERS[own.method]} = {own.share:g}"
    accuracies = own.accuracy.words(2), own.train_accuracy.words(2)
    return (name, *accuracies, number(own.speed.images_per_second, 0), str(own.accuracy.n))


def draw(measured: TableFigures, path: Path) -> list[Path]:
    """Draw accuracy against speed: connected dots for the studies, isolated ones for SGD, SAM and ESAM."""
    written = []
    for one in measured.workloads:
        connected: dict[str, list[Dot]] = {}
        isolated: dict[str, Dot] = {}
        colours: dict[str, str] = {}
        for own in one.methods:
            studied = own.share is not None
            name = f"{own.label}, {PARAMETERS[own.method]} .3 to .9" if studied else own.label
            colours[name] = METHODS[own.method].colour or SPARE
            words, accuracy = f"{own.share:g}" if studied else "", own.accuracy
            dot = Dot(own.speed.images_per_second, accuracy.mean or 0.0, words, accuracy.std)
            if studied:
                connected.setdefault(name, []).append(dot)
            else:
                isolated[name] = dot
        where = path.with_name(f"{path.name}-{slug(one.workload.paper)}")
        counts = sorted({own.accuracy.n for own in one.methods})
        title = f"{one.workload.title}\nwhiskers: standard deviation over n = {' to '.join(map(str, counts))} seeds"
        labels = {"x_label": "training speed, images/s", "y_label": "test accuracy, %"}
        written += dots(where, connected, isolated, colours=colours, title=title, **labels)
    return written


ITEM = Item(
    name="parameter-study",
    number="Figure 3",
    title="Parameter study of SWP's beta and SDS's gamma",
    kind=TableFigures,
    needs=needs,
    analyse=lambda inputs: table_figures(inputs, PAPER),
    sheets=sheets,
    draw=draw,
    notes=(
        "The paper prints no numbers for this figure beyond its choice of beta = .6 (.5 on WRN-28-10), gamma = .5.",
    ),
)
