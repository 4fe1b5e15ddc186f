"""A.3: is the loss more linear along SWP's perturbation? zeta(eps, B) = |L(theta + eps) - L(theta) - eps^T g|.

"SWP will result in a better linearity as the beta decreases. However, decreasing beta will also reduce the magnitude
of eps." Algorithm 1 divides SWP's perturbation by beta, which makes it longer for a smaller beta, not shorter: both
forms are measured on the same masks.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, linear_regression, median
from typing import Any

from esam.analysis.picture import write_picture

from . import rules
from .appendix2 import batches, named
from .hyperparameters import RESNET
from .probe import BETAS
from .results import Claim, Judge, Results
from .rules import Verdict

NUMBER, TITLE = "Figure of A.3", "Linearity of the loss along SWP's perturbation"
FORMS = {"": "eps divided by beta, as in Algorithm 1", " undivided": "eps not divided by beta"}


def probed(results: Results, name: str) -> list[list[float]]:
    """Return a figure in every probed batch, for each seed."""
    return batches(results, RESNET, named(name))


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the median of zeta against beta in both forms, SAM's as a level line."""
    if not probed(results, "zeta sam"):
        return []

    def drawn(figure: Any) -> None:
        axes = figure.subplots()
        for (form, words), colour in zip(FORMS.items(), ("#8a5cc2", "#0d8f58"), strict=True):
            every = [[median(values) for values in probed(results, f"zeta {beta:g}{form}")] for beta in BETAS]
            axes.plot(BETAS, [median(m) for m in every], "o-", color=colour, label=f"SWP, {words}")
            axes.fill_between(BETAS, list(map(min, every)), list(map(max, every)), color=colour, alpha=0.2, linewidth=0)
        sam = [median(values) for values in probed(results, "zeta sam")]
        axes.axhline(median(sam), linestyle="--", color="#1f6fb4", label="SAM")
        axes.set_yscale("log")
        axes.set(xlabel="beta", ylabel="zeta(eps, B), median over batches: lower is more linear")
        batches = len(probed(results, "zeta sam")[0])
        title = f"A.3: {results.title(RESNET)}, {len(sam)} runs of {batches} probed batches; bands: lowest to highest"
        axes.set_title(title, loc="left", fontsize=8)
        axes.grid(True)
        axes.legend(fontsize=8)

    return write_picture(folder / "appendix3.png", drawn, width=7.0, height=4.2)


def _slope(kind: str, form: str = "") -> Judge:
    """Return the judge that the logarithm of a figure grows with beta, by a slope for each seed (rule 12)."""

    def judge(results: Results) -> Verdict:
        every = [probed(results, f"{kind} {beta:g}{form}") for beta in BETAS]
        logs = [[math.log(max(median(values), 1e-12)) for values in seed] for seed in zip(*every, strict=True)]
        if not logs:
            return Verdict(rules.NOT_RUN, "no probed runs")
        found = rules.interval([linear_regression(BETAS, own).slope for own in logs])
        return rules.above(found, 0.0, f"slope of log {kind} on beta {found.words()} (n = {found.n} runs)")

    return judge


def _unbiased(results: Results) -> Verdict:
    """Judge that the mean of many masks is SAM's eps, up to what chance explains (rule 13)."""
    cosines, distances = ([fmean(own) for own in probed(results, f"mean {what}")] for what in ("cosine", "distance"))
    if not distances:
        return Verdict(rules.NOT_RUN, "no probed runs")
    ratio, n = fmean(distances), len(distances)
    words = f"cosine {fmean(cosines):.4f}; {ratio:.2f} times the distance that chance explains (n = {n} runs)"
    return Verdict(rules.HOLDS if ratio <= 1.5 else rules.CONTRADICTED, words)


CLAIMS = (
    Claim("SWP's expected perturbation is SAM's", "cosine 1, equal norm", _unbiased),
    Claim("A smaller beta is more linear", "zeta falls with beta", _slope("zeta")),
    Claim("A smaller beta is more linear, eps not divided by beta", "zeta falls", _slope("zeta", " undivided")),
    Claim("A smaller beta makes eps shorter", "reduces its magnitude", _slope("length")),
)
