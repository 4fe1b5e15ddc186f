"""How much SWP saves: MLPs of N layers, and the fit of g(N, beta) = k1 (1 - beta) + k2 (1 - beta) / (N beta).

Paper: layers of 3,000 units, beta .1 to 1. CPU scale: layers of 256 units, batch 128. Two cases: one unit a layer, and
two with cross connections.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Values
from esam.reproduce.scale import Scale
from esam.reproduce.store import Found

from .planes import remembered

PAPER: dict[str, Any] = {
    "serial": {
        "fit": {"k1": 0.3185, "k2": 0.1310, "r_squared": 0.9983},
        "g": {
            "50": {"0.9": 3.42, "0.5": 16.28, "0.1": 30.08},
            "75": {"0.9": 3.44, "0.5": 15.79, "0.1": 30.42},
            "100": {"0.9": 3.37, "0.5": 15.86, "0.1": 29.56},
            "125": {"0.9": 2.94, "0.5": 14.87, "0.1": 29.42},
        },
    },
    "crossed": {
        "fit": {"k1": 0.3143, "k2": 0.0737, "r_squared": 0.9989},
        "g": {
            "25": {"0.9": 2.88, "0.5": 15.54, "0.1": 30.03},
            "50": {"0.9": 2.34, "0.5": 15.10, "0.1": 29.83},
            "65": {"0.9": 2.23, "0.5": 14.95, "0.1": 29.22},
            "75": {"0.9": 2.22, "0.5": 15.10, "0.1": 28.68},
        },
    },
}
WORDS = {"serial": "one unit a layer", "crossed": "two units a layer, cross connections"}


def needs(scale: Scale) -> Needs:
    """Return the operations of the timed passes; no run is trained."""
    from esam.analysis.cost import REPEATS

    sizes = scale.savings
    layer = 3 * 2 * sizes.width**2 * sizes.batch
    units = sum(sizes.serial) + 2 * sum(sizes.crossed)
    words = f"{sizes.serial} and {sizes.crossed} layers of {sizes.width:,} units, {sizes.draws} draws"
    return Needs(
        thread_flops=float(units * layer * REPEATS * sizes.draws * (1 + len(sizes.betas))),
        sizes={"MLPs": f"{words}, timed on one CPU thread"},
    )


def analyse(found: Found) -> Values:
    """Return the measured savings and the fit for both cases; each case is kept once it is done."""
    import torch

    from esam.analysis.cost import CASES, fit_savings, keep_freed_memory, measure_savings, savings_json

    sizes, measured = found.scale.savings, {}
    for case, layers in (("serial", sizes.serial), ("crossed", sizes.crossed)):
        key = {"layers": list(layers), "betas": list(sizes.betas), "width": sizes.width}
        key |= {"batch": sizes.batch, "draws": sizes.draws}

        def work(case: str = case, layers: tuple[int, ...] = layers) -> dict[str, Any]:
            what = f"timing MLPs of {', '.join(map(str, layers))} layers, {WORDS[case]}"
            keep_freed_memory()
            savings = measure_savings(
                CASES[case],
                layers=layers,
                betas=sizes.betas,
                width=sizes.width,
                batch=sizes.batch,
                draws=sizes.draws,
                progress=found.progress(what),
            )
            return savings_json(savings, fit_savings(savings))

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            measured[case] = remembered(found.kept(f"swp-savings-{case}"), key, work)
        finally:
            torch.set_num_threads(threads)
    return measured


def sheets(measured: Values) -> list[Sheet]:
    """Return the fits beside the paper's, and g at the paper's betas."""
    fits = []
    for case, own in measured.items():
        theirs = PAPER[case]["fit"]
        cells = [f"{values[key]:.4f}" for key in ("k1", "k2", "r_squared") for values in (own["fit"], theirs)]
        fits.append((WORDS[case], *cells))
    head = ("Case", "k1", "paper", "k2", "paper", "R²", "paper")
    every = [Sheet("The fit of g(N, beta)", head, tuple(fits))]
    for case, own in measured.items():
        lines = []
        for one in own["savings"]:
            printed = PAPER[case]["g"].get(str(one["layers"]), {}).get(f"{one['beta']:g}")
            lines.append(
                (
                    f"N = {one['layers']}, beta = {one['beta']:g}",
                    f"{100 * one['saved']:.2f} ± {100 * one['error']:.2f}",
                    f"{100 * one['predicted']:.2f}",
                    "–" if printed is None else f"{printed:.2f}",
                )
            )
        title = f"Saved of SAM's first pass, % ± standard error: {WORDS[case]}"
        every.append(Sheet(title, ("", "measured", "by the fit", "paper"), tuple(lines)))
    return every


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw g against beta for every N, one figure for each case."""
    from esam.analysis.plot import Curve, curves

    written = []
    for case, own in measured.items():
        drawn = {}
        for layers in sorted({one["layers"] for one in own["savings"]}):
            here = [one for one in own["savings"] if one["layers"] == layers]
            saved, errors = [100 * one["saved"] for one in here], [100 * one["error"] for one in here]
            drawn[f"N = {layers}"] = Curve([one["beta"] for one in here], saved, errors)
        theirs = PAPER[case]["fit"]
        first = min({one["layers"] for one in own["savings"]})
        betas = sorted({one["beta"] for one in own["savings"]})
        form = [100 * (theirs["k1"] * (1 - beta) + theirs["k2"] * (1 - beta) / (first * beta)) for beta in betas]
        drawn[f"the paper's fit, N = {first}"] = Curve(betas, form, dash="--")
        where = path.with_name(f"{path.name}-{case}")
        written += curves(where, drawn, x_label="beta", y_label="saved of SAM's first pass, %", title=WORDS[case])
    return written


ITEM = Item(
    name="swp-savings",
    number="Tables of A.4",
    title="What SWP saves: g(N, beta) on MLPs",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper=PAPER,
    notes=(
        "Ours is of the processor time of SAM's first pass and its backward, in one thread; the paper does not tell "
        "what its percentage is of. Its table of the second case starts at N = 25 where its text says 35.",
    ),
)
