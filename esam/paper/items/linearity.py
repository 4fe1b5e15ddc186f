"""Linearity of the loss along SWP's perturbation, beta .2 to .9, against SAM's; and the mean of SWP's perturbation.

zeta(eps, B) = |L(theta + eps) - L(theta) - eps^T g|. Paper: ResNet-18 on CIFAR-10. CPU scale: ResNet-8 on CIFAR-10.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from esam.analysis.plot import Curve, curves
from esam.report.sheets import Sheet

from ..engine.inputs import Inputs
from ..engine.item import Item, Workload
from ..engine.observer import MeanPerturbation
from ..engine.values import Repeated, mean_of, number, with_gaps
from ..scales import FOUR
from .probes import probed_needs

FORMS = {"divided": "eps divided by beta, as in Algorithm 1", "undivided": "eps not divided by beta"}


@dataclass(frozen=True)
class BetaZetas:
    """zeta of SWP for one beta, of each batch the mean over masks: with eps divided by beta, and not."""

    beta: float
    divided: Repeated
    undivided: Repeated


@dataclass(frozen=True)
class LinearityFigures:
    """zeta by beta beside SAM's, and SWP's mean perturbation after each probed epoch."""

    workload: Workload
    epochs: tuple[int, ...]
    sam: Repeated
    swp: tuple[BetaZetas, ...]
    mean_perturbations: tuple[MeanPerturbation, ...]


def analyse(inputs: Inputs) -> LinearityFigures:
    """Return zeta for each beta, over all batches and epochs, beside SAM's; and SWP's mean perturbation."""
    (runs,) = inputs.needs.probed
    seen = inputs.observations(runs)
    batches = [batch for one in seen for batch in one.batches]
    swp = []
    for every in zip(*(batch.swp_zetas for batch in batches), strict=True):
        forms = (tuple(mean_of(getattr(one, form)) for one in every) for form in FORMS)
        swp.append(BetaZetas(every[0].beta, *map(Repeated, forms)))
    return LinearityFigures(
        workload=runs.workload,
        epochs=tuple(one.epoch for one in seen),
        sam=Repeated(tuple(batch.sam_zeta for batch in batches)),
        swp=tuple(swp),
        mean_perturbations=tuple(one.mean_perturbation for one in seen),
    )


def sheets(measured: LinearityFigures) -> list[Sheet]:
    """Return zeta by beta, and the mean perturbation."""
    lines = [(f"{one.beta:g}", one.divided.words(5), one.undivided.words(5)) for one in measured.swp]
    lines.append(("SAM", measured.sam.words(5), measured.sam.words(5)))
    title = f"zeta(eps, B), {measured.workload.title}, mean over {measured.sam.n} batches ± standard deviation"
    means = []
    for epoch, one in zip(measured.epochs, measured.mean_perturbations, strict=True):
        values = (one.cosine, one.norm, one.distance, one.expected_distance)
        means.append((str(epoch), *(number(value, 4) for value in values), str(one.draws)))
    head = ("Epoch", "Cosine to SAM's eps", "Norm of the mean / SAM's", "Distance / SAM's norm", "by chance", "draws")
    return [
        Sheet(title, ("beta", *FORMS.values()), tuple(lines)),
        Sheet("The mean of SWP's perturbation (beta .6) against SAM's", head, tuple(means)),
    ]


def draw(measured: LinearityFigures, path: Path) -> list[Path]:
    """Draw zeta against beta in both forms, SAM's as a level line."""
    betas = [one.beta for one in measured.swp]
    drawn = {
        f"SWP, {words}": Curve(betas, with_gaps(getattr(one, form).mean for one in measured.swp))
        for form, words in FORMS.items()
    }
    drawn["SAM"] = Curve(betas, with_gaps([measured.sam.mean] * len(betas)), dash="--")
    label = "zeta(eps, B): lower is more linear"
    return curves(path, drawn, x_label="beta", y_label=label, title=measured.workload.title)


ITEM = Item(
    name="linearity",
    number="Figure of A.3",
    title="Linearity of the loss along SWP's perturbation",
    kind=LinearityFigures,
    needs=lambda scale: probed_needs(scale, FOUR[:1]),
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    notes=(
        "Algorithm 1 divides SWP's perturbation by beta, which makes it longer for a smaller beta; the paper's text to "
        "this figure says that a smaller beta reduces it. Both forms are measured, on the same masks.",
    ),
)
