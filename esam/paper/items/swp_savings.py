"""How much SWP saves: MLPs of N layers, and the fit of g(N, beta) = k1 (1 - beta) + k2 (1 - beta) / (N beta).

Paper: layers of 3,000 units, beta .1 to 1. CPU scale: layers of 256 units, batch 128. Two cases: one unit a layer, and
two with cross connections.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from esam.analysis.plot import Curve, curves
from esam.report.sheets import Sheet

from ..engine.inputs import Inputs
from ..engine.item import Item, Needs
from ..engine.scale import ExperimentScale
from ..engine.values import number, remembered
from .savings_timing import CASES, WARM_UP, Fit, Saving, fit_savings, keep_freed_memory, measure_savings, predicted


@dataclass(frozen=True)
class CaseFigures:
    """The savings measured in one case, and the fit of g to them."""

    case: str
    savings: tuple[Saving, ...]
    fit: Fit


@dataclass(frozen=True)
class SavingsFigures:
    """Both cases, timed on so many CPU threads."""

    threads: int
    cases: tuple[CaseFigures, ...]


PAPER_FITS = {"serial": Fit(0.3185, 0.1310, 0.9983, None), "crossed": Fit(0.3143, 0.0737, 0.9989, None)}
PAPER_SAVINGS: dict[str, dict[int, dict[float, float]]] = {
    "serial": {
        50: {0.9: 3.42, 0.5: 16.28, 0.1: 30.08},
        75: {0.9: 3.44, 0.5: 15.79, 0.1: 30.42},
        100: {0.9: 3.37, 0.5: 15.86, 0.1: 29.56},
        125: {0.9: 2.94, 0.5: 14.87, 0.1: 29.42},
    },
    "crossed": {
        25: {0.9: 2.88, 0.5: 15.54, 0.1: 30.03},
        50: {0.9: 2.34, 0.5: 15.10, 0.1: 29.83},
        65: {0.9: 2.23, 0.5: 14.95, 0.1: 29.22},
        75: {0.9: 2.22, 0.5: 15.10, 0.1: 28.68},
    },
}
"""g(N, beta) as printed, in per cent."""
WORDS = {"serial": "one unit a layer", "crossed": "two units a layer, cross connections"}


def needs(scale: ExperimentScale) -> Needs:
    """Return the operations of the timed passes; no run is trained."""
    toys = scale.toys
    layer = 3 * 2 * toys.width**2 * toys.batch
    units = sum(toys.serial) + 2 * sum(toys.crossed)
    words = f"{toys.serial} and {toys.crossed} layers of {toys.width:,} units, {toys.draws} draws"
    return Needs(
        thread_flops=float(units * layer * (toys.draws + WARM_UP) * (1 + len(toys.betas))),
        sizes={"MLPs": f"{words}, timed on one CPU thread"},
    )


def analyse(inputs: Inputs) -> SavingsFigures:
    """Return the measured savings and the fit for both cases; each case is kept once it is done."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return SavingsFigures(1, tuple(_case(inputs, case) for case in CASES))
    finally:
        torch.set_num_threads(threads)


def _case(inputs: Inputs, case: str) -> CaseFigures:
    toys = inputs.scale.toys
    layers = {"serial": toys.serial, "crossed": toys.crossed}[case]

    def work() -> CaseFigures:
        keep_freed_memory()
        progress = inputs.progress(f"timing MLPs of {', '.join(map(str, layers))} layers, {WORDS[case]}")
        savings = measure_savings(layers, CASES[case], toys, progress)
        return CaseFigures(case, tuple(savings), fit_savings(savings))

    return remembered(inputs.cache(f"swp-savings-{case}"), toys, CaseFigures, work)


def sheets(measured: SavingsFigures) -> list[Sheet]:
    """Return the fits beside the paper's, and g at the paper's betas."""
    fits = []
    for own in measured.cases:
        ours, theirs = own.fit, PAPER_FITS[own.case]
        pairs = ((ours.k1, theirs.k1), (ours.k2, theirs.k2), (ours.r_squared, theirs.r_squared))
        fits.append((WORDS[own.case], *(number(value, 4) for pair in pairs for value in pair)))
    head = ("Case", "k1", "paper", "k2", "paper", "R²", "paper")
    return [Sheet("The fit of g(N, beta)", head, tuple(fits)), *map(_savings_sheet, measured.cases)]


def _savings_sheet(own: CaseFigures) -> Sheet:
    lines = [
        (
            f"N = {one.layers}, beta = {one.beta:g}",
            f"{100 * one.saved:.2f} ± {100 * one.error:.2f}",
            number(100 * predicted(own.fit, one.layers, one.beta), 2),
            number(PAPER_SAVINGS[own.case].get(one.layers, {}).get(one.beta), 2),
        )
        for one in own.savings
    ]
    title = f"Saved of SAM's first pass, % ± standard error: {WORDS[own.case]}"
    return Sheet(title, ("", "measured", "by the fit", "paper"), tuple(lines))


def draw(measured: SavingsFigures, path: Path) -> list[Path]:
    """Draw g against beta for every N, one figure for each case."""
    written = []
    for own in measured.cases:
        depths = sorted({one.layers for one in own.savings})
        betas = sorted({one.beta for one in own.savings})
        drawn = {}
        for layers in depths:
            here = [one for one in own.savings if one.layers == layers]
            saved, errors = [100 * one.saved for one in here], [100 * one.error for one in here]
            drawn[f"N = {layers}"] = Curve([one.beta for one in here], saved, errors)
        form = [100 * predicted(PAPER_FITS[own.case], depths[0], beta) for beta in betas]
        drawn[f"the paper's fit, N = {depths[0]}"] = Curve(betas, form, dash="--")
        where = path.with_name(f"{path.name}-{own.case}")
        written += curves(where, drawn, x_label="beta", y_label="saved of SAM's first pass, %", title=WORDS[own.case])
    return written


ITEM = Item(
    name="swp-savings",
    number="Tables of A.4",
    title="What SWP saves: g(N, beta) on MLPs",
    kind=SavingsFigures,
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    notes=(
        "Ours is of the processor time of SAM's first pass and its backward, in one thread; the paper does not tell "
        "what its percentage is of. Its table of the second case starts at N = 25 where its text says 35.",
        "Ratios of total times, SAM and all betas in random order. At beta 1 both do the same: that row must be 0.",
    ),
)
