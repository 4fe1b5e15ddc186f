"""How long until SDS is free? The gap of ESAM to SAM by the number of epochs, by gamma, and by what might cause it.

Not in the paper, which trains 200 epochs. CPU scale: ResNet-8 on 1,000 images of CIFAR-10, 25 to 400 epochs, 3 seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esam.analysis.plot import Curve, curve_panels
from esam.optim import METHODS
from esam.report.sheets import Sheet

from ..engine.inputs import Inputs
from ..engine.item import Item, MethodRuns, Needs, Workload, runs_of, with_changes
from ..engine.scale import ExperimentScale, LengthStudy
from ..engine.values import Repeated, number
from .tables import THREE

COLOURS = {"SGD": "#66707d", "ESAM": "#2b87e8", "ESAM-SDS": "#5a50dc"}
VARIANT_COLOURS = ("#0d8f58", "#e4539f", "#00939c", "#b0329c")


@dataclass(frozen=True)
class LengthPoint:
    """What one way of training reached in so many epochs; accuracies in per cent, by seed."""

    label: str
    epochs: int
    units: float
    """What a step costs by count: SGD 3, SAM 6."""
    accuracy: Repeated
    train_accuracy: Repeated
    train_loss: Repeated
    gap: Repeated
    """Test accuracy less SAM's with the same seed and epochs."""


@dataclass(frozen=True)
class LengthFigures:
    """Every way of training at every length."""

    workload: Workload
    points: tuple[LengthPoint, ...]

    def labels(self) -> list[str]:
        """Return the ways of training, in order."""
        return list(dict.fromkeys(point.label for point in self.points))

    def of(self, label: str) -> list[LengthPoint]:
        """Return one way of training by its length."""
        return [point for point in self.points if point.label == label]


def needs(scale: ExperimentScale) -> Needs:
    """Return the runs at every length; those at the scale's own length are Table 1's and Table 3's."""
    study = scale.length
    if study is None:
        return Needs()
    runs = [one for epochs in study.epochs for one in _plain(scale, study, epochs, THREE)]
    runs += [one for epochs in study.sds_epochs for one in _plain(scale, study, epochs, ("esam-sds",))]
    runs += [one for epochs in study.variant_epochs for one in _variants(scale, study, epochs)]
    return Needs(runs=tuple(runs), sizes={"epochs": ", ".join(map(str, study.epochs))})


def _plain(scale: ExperimentScale, study: LengthStudy, epochs: int, methods: Sequence[str]) -> Sequence[MethodRuns]:
    comparison = with_changes(scale.comparisons[study.task], epochs=epochs, evaluate_every=epochs)
    return runs_of(study.task, comparison, methods)


def _variants(scale: ExperimentScale, study: LengthStudy, epochs: int) -> list[MethodRuns]:
    """Return ESAM with another gamma, with the free ranking, and SDS with steps of the batch's length."""
    comparison = with_changes(scale.comparisons[study.task], epochs=epochs, evaluate_every=epochs)
    own = comparison.settings.get("esam", {})
    changed: list[tuple[str, str, dict[str, Any]]] = [
        *((f"ESAM, gamma {gamma:g}", "esam", {"gamma": gamma}) for gamma in study.gammas),
        ("ESAM, aligned ranking", "esam", {"ranking": "aligned"}),
        ("SDS, steps of the batch's length", "sds-level", {}),
    ]
    found = []
    for label, method, settings in changed:
        other = dataclasses.replace(comparison, settings={method: {**own, **settings}})
        (runs,) = runs_of(study.task, other, (method,))
        found.append(dataclasses.replace(runs, label=label))
    return found


def analyse(inputs: Inputs) -> LengthFigures:
    """Return every way of training at every length, and its gap to SAM seed by seed."""
    every = inputs.needs.runs
    sam = {runs.configs[0].epochs: inputs.accuracy(runs).values for runs in every if runs.method == "sam"}
    points = []
    for runs in every:
        accuracy, first = inputs.accuracy(runs), runs.configs[0]
        pairs = zip(accuracy.values, sam[first.epochs], strict=True)
        points.append(
            LengthPoint(
                label=runs.label,
                epochs=first.epochs,
                units=METHODS[runs.method].units(first.settings),
                accuracy=accuracy,
                train_accuracy=inputs.train_accuracy(runs),
                train_loss=inputs.train_loss(runs),
                gap=Repeated(tuple(None if a is None or b is None else a - b for a, b in pairs)),
            )
        )
    return LengthFigures(every[0].workload, tuple(points))


def sheets(measured: LengthFigures) -> list[Sheet]:
    """Return test and training accuracy, training loss and gap of every way of training at every length."""
    head = ("Epochs, method", "Accuracy, %", "over SAM, points", "Training, %", "Training loss", "Cost, SGD 3", "n")
    lines = [
        (
            f"{one.epochs} epochs: {one.label}",
            one.accuracy.words(2),
            number(one.gap.mean, 2, sign="+") + ("" if one.gap.error is None else f" ± {one.gap.error:.2f}"),
            one.train_accuracy.words(1),
            one.train_loss.words(4),
            number(one.units, 1),
            str(one.accuracy.n),
        )
        for one in sorted(measured.points, key=lambda one: one.epochs)
    ]
    title = f"{measured.workload.title}: over SAM with the same seeds, ± standard error; else ± standard deviation"
    return [Sheet(title, head, tuple(lines))]


def draw(measured: LengthFigures, path: Path) -> list[Path]:
    """Draw the gap to SAM, and the training loss that goes with it, against the epochs."""
    colours = {**dict(zip(_extra(measured), VARIANT_COLOURS, strict=False)), **COLOURS, "SAM": "#d17a12"}
    gaps, losses = {}, {}
    for label in measured.labels():
        own = measured.of(label)
        epochs, dash = [one.epochs for one in own], "-" if label in COLOURS or label == "SAM" else "--"
        if label != "SAM":
            gaps[label] = Curve(
                epochs, [one.gap.mean or 0.0 for one in own], [one.gap.error or 0.0 for one in own], dash
            )
        losses[label] = Curve(epochs, [one.train_loss.mean or 0.0 for one in own], dash=dash)
    panels = {"test accuracy over SAM's, points": gaps, "training loss at the end": losses}
    n = min(one.accuracy.n for one in measured.points)
    title = f"{measured.workload.title}; bands: standard error of the paired difference, n = {n} seeds"
    return curve_panels(path, panels, x_label="epochs of training", title=title, colours=colours, log=("x", "y2"))


def _extra(measured: LengthFigures) -> list[str]:
    return [label for label in measured.labels() if label not in COLOURS and label != "SAM"]


ITEM = Item(
    name="length",
    number="Beyond the paper",
    title="How long until SDS is free?",
    kind=LengthFigures,
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    notes=(
        "Every length is a training of its own, with its own cosine. SDS with steps of the batch's length: the "
        "learning rate is divided in every step by the ratio of the gradient's length on B+ to that on B.",
    ),
)
