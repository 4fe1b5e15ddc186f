"""What does the paper claim, what was measured here, and does it hold?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from esam.report.reproduction import Part
from esam.report.sheets import Sheet, as_markdown

from .engine.store import ResultStore
from .items import ITEMS
from .items.four_losses import AT_EPS, AT_THETA, RISES
from .verdicts import (
    NOT_RUN,
    Finding,
    Judge,
    at_least,
    best_share,
    costs,
    every_batch,
    every_epoch,
    faster,
    flatter,
    form_of_savings,
    more_linear,
    nearer,
    rises_most,
    smallest_that_keeps,
    unbiased,
)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and the rule that judges it by an item's result."""

    name: str
    paper: str
    """The paper's own statement or number."""
    item: str
    judge: Judge


def judged(store: ResultStore) -> list[tuple[Claim, Finding]]:
    """Judge every claim by the items that have been made at a scale."""
    return [(claim, _judged(claim, store)) for claim in CLAIMS]


def _judged(claim: Claim, store: ResultStore) -> Finding:
    item = ITEMS[claim.item]
    if item.needs(store.scale).empty:
        return Finding(NOT_RUN, f"nothing stands for this task at the scale {store.scale.name}")
    result = store.result(item)
    return Finding(NOT_RUN, f"{claim.item} has not been made") if result is None else claim.judge(result)


def claims_sheet(store: ResultStore) -> Sheet:
    """Return the table of claims."""
    rows = [(claim.name, claim.paper, found.verdict, words(found)) for claim, found in judged(store)]
    return Sheet("The paper's claims", ("Claim", "Paper", "Verdict", "Measured here"), tuple(rows))


def claims_markdown(store: ResultStore) -> str:
    """Return the table of claims as Markdown, as it stands in the docs between the marks of the claims."""
    return as_markdown(claims_sheet(store))


def claims_part(store: ResultStore) -> Part:
    """Return the claims as the first part of the page."""
    return Part("claims", "Claims", "what the paper says, and what was measured", [claims_sheet(store)], [], [])


def words(found: Finding) -> str:
    """Say what was measured, and why it cannot be told where that is so."""
    return f"{found.measured}; cannot tell: {found.why}" if found.why else found.measured


def _flatness(method: str, title: str) -> Sequence[Claim]:
    """Return the claims that a method's minimum is flatter than SGD's, by four figures."""
    figures = {
        "landscape": ("landscapes", flatter(method, lambda own: own.rise)),
        "lambda_max": ("landscapes", flatter(method, lambda own: own.eigenvalue)),
        "trace": ("landscapes", flatter(method, lambda own: own.trace)),
        "adversarial plane": ("adversarial-landscapes", flatter(method, lambda own: own.rise)),
    }
    return [
        Claim(f"{title}'s minimum is flatter: {figure}", "significantly", item, judge)
        for figure, (item, judge) in figures.items()
    ]


CLAIMS = (
    Claim("SWP's expected perturbation is SAM's", "cosine 1, equal norm", "linearity", unbiased),
    Claim("SWP's accuracy is at least SAM's", "+0.10 to +1.02 points", "table3", at_least("esam-swp", "sam")),
    Claim("SDS's accuracy is that of SAM", "-0.07 to +1.04 points", "table3", at_least("esam-sds", "sam")),
    Claim("SAM's accuracy is at least SGD's, CIFAR", "+0.68 to +2.57 points", "table1", at_least("sam", "base")),
    Claim("ESAM's accuracy is at least SGD's, CIFAR", "+0.95 to +3.67 points", "table1", at_least("esam", "base")),
    Claim("ESAM's accuracy is at least SAM's, CIFAR", "+0.02 to +1.10 points", "table1", at_least("esam", "sam")),
    Claim("ESAM's accuracy is at least SAM's, ImageNet", "+0.35 and +0.49 points", "table2", at_least("esam", "sam")),
    Claim("ESAM takes 40 % more time than SGD", "by its table 41 to 46 %", "table1", costs("esam", 1.46)),
    Claim("ESAM is faster than SAM", "faster in every table", "table1", faster("esam", 1.0)),
    Claim("ESAM's speed on CIFAR", "137.9 to 140.3 % of SAM's", "table1", faster("esam", 1.379)),
    Claim("ESAM's speed on ImageNet", "128.7 and 129.3 % of SAM's", "table2", faster("esam", 1.287)),
    Claim("SWP's speed", "108.3 to 110.5 % of SAM's", "table3", faster("esam-swp", 1.083)),
    Claim("SDS's speed", "121.5 to 125.8 % of SAM's", "table3", faster("esam-sds", 1.215)),
    Claim("ViT: SWP's accuracy is at least SAM's", "80.88 and 80.34 %", "vit", at_least("esam-swp", "sam")),
    Claim("ViT: ESAM's accuracy is at least SAM's", "80.46 and 80.34 %", "vit", at_least("esam", "sam")),
    Claim("ViT: ESAM's speed", "126.3 % of SAM's", "vit", faster("esam", 1.263)),
    Claim("beta = .5 to .6 is best for SWP", "best at .6 and .5", "parameter-study", best_share("esam-swp", 0.5, 0.6)),
    Claim(
        "gamma = .5 is the smallest that keeps SAM's accuracy",
        "comparable to SAM at .5",
        "parameter-study",
        smallest_that_keeps("esam-sds", 0.5, "sam"),
    ),
    Claim(RISES, "by construction", "four-losses", every_batch(RISES)),
    Claim(AT_THETA, "in every epoch", "four-losses", every_epoch(AT_THETA)),
    Claim(AT_EPS, "in every epoch", "four-losses", every_epoch(AT_EPS)),
    Claim("B+ is nearer to B than B-", "much higher cosine", "cosines", nearer("B-")),
    Claim("B+ is nearer to B than a random half", "much higher cosine", "cosines", nearer("B_rand")),
    Claim("The loss of B+ rises most along eps", "as in its Figure 2", "sds-illustration", rises_most),
    Claim("Smaller beta is more linear", "zeta falls with beta", "linearity", more_linear(lambda one: one.divided)),
    Claim(
        "Smaller beta is more linear, eps not divided by beta",
        "zeta falls with beta",
        "linearity",
        more_linear(lambda one: one.undivided),
    ),
    Claim("g(N, beta) has the form k1 (1-b) + k2 (1-b)/(Nb)", "R² .9983 and .9989", "swp-savings", form_of_savings),
    *_flatness("sam", "SAM"),
    *_flatness("esam", "ESAM"),
)
