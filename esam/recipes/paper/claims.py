"""What does the paper claim, what was measured here, and does it hold?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esam.report.reproduction import Part
from esam.report.sheets import Sheet
from esam.reproduce.item import Item
from esam.reproduce.store import Store

from .verdicts import (
    UNTESTED,
    Judge,
    at_least,
    best_share,
    costs,
    every_batch,
    every_epoch,
    faster,
    fits,
    flatter,
    higher_cosine,
    more_linear,
    unbiased,
)

Measured = Mapping[str, Mapping[str, Any]]
"""The measured values of the items that were made, by name."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and the rule that judges it by an item's measured values."""

    name: str
    paper: str
    """The paper's own statement or number."""
    item: str
    judge: Judge


@dataclass(frozen=True)
class Judged:
    """One row of the table of claims."""

    claim: str
    paper: str
    measured: str
    verdict: str


def judged(measured: Measured) -> list[Judged]:
    """Judge every claim by the items that were made; one whose item was not made is not tested."""
    rows = []
    for claim in CLAIMS:
        found, verdict = (f"{claim.item} has not been made", UNTESTED)
        if claim.item in measured:
            found, verdict = claim.judge(measured[claim.item])
        rows.append(Judged(claim.name, claim.paper, found, verdict))
    return rows


def claims_sheet(rows: Sequence[Judged]) -> Sheet:
    """Return the table of claims."""
    head = ("Claim", "Paper", "Verdict", "Measured here")
    return Sheet("The paper's claims", head, tuple((r.claim, r.paper, r.verdict, r.measured) for r in rows))


def judged_at(items: Mapping[str, Item], store: Store) -> list[Judged]:
    """Judge every claim by the items that have been made at a scale."""
    results = {name: store.result(item) for name, item in items.items()}
    return judged({name: result["measured"] for name, result in results.items() if result is not None})


def claims_part(items: Mapping[str, Item], store: Store) -> Part:
    """Return the claims as the first part of the page."""
    return Part(
        "claims",
        "Claims",
        "what the paper says, and what was measured",
        [claims_sheet(judged_at(items, store))],
        [],
        [],
    )


CLAIMS = (
    Claim("SWP's expected perturbation is SAM's", "cosine 1, equal norm", "linearity", unbiased),
    Claim("SWP's accuracy is at least SAM's", "+0.10 to +1.02 points", "table3", at_least("ESAM-SWP", "SAM")),
    Claim("SDS's accuracy is that of SAM", "-0.07 to +1.04 points", "table3", at_least("ESAM-SDS", "SAM")),
    Claim("SAM's accuracy is at least SGD's, CIFAR", "+0.68 to +2.57 points", "table1", at_least("SAM", "SGD")),
    Claim("ESAM's accuracy is at least SGD's, CIFAR", "+0.95 to +3.67 points", "table1", at_least("ESAM", "SGD")),
    Claim("ESAM's accuracy is at least SAM's, CIFAR", "+0.02 to +1.10 points", "table1", at_least("ESAM", "SAM")),
    Claim("ESAM's accuracy is at least SAM's, ImageNet", "+0.35 and +0.49 points", "table2", at_least("ESAM", "SAM")),
    Claim("ESAM takes 40 % more time than SGD", "by its table 41 to 46 %", "table1", costs("ESAM", 1.46)),
    Claim("ESAM is faster than SAM", "faster in every table", "table1", faster("ESAM", 1.0)),
    Claim("ESAM's speed on CIFAR", "137.9 to 140.3 % of SAM's", "table1", faster("ESAM", 1.379)),
    Claim("ESAM's speed on ImageNet", "128.7 and 129.3 % of SAM's", "table2", faster("ESAM", 1.287)),
    Claim("SWP's speed", "108.3 to 110.5 % of SAM's", "table3", faster("ESAM-SWP", 1.083)),
    Claim("SDS's speed", "121.5 to 125.8 % of SAM's", "table3", faster("ESAM-SDS", 1.215)),
    Claim("ViT: SWP's accuracy is at least SAM's", "80.88 and 80.34 %", "vit", at_least("ESAM-SWP", "SAM")),
    Claim("ViT: ESAM's accuracy is at least SAM's", "80.46 and 80.34 %", "vit", at_least("ESAM", "SAM")),
    Claim("ViT: ESAM's speed", "126.3 % of SAM's", "vit", faster("ESAM", 1.263)),
    Claim("beta = .5 to .6 is best for SWP", "best at .6 and .5", "parameter-study", best_share("ESAM-SWP", 0.5, 0.6)),
    Claim("R_B- <= R_B <= R_B+", "by construction", "four-losses", every_batch("R_B- <= R_B <= R_B+")),
    Claim("L_B- <= L_B+ at theta", "in every epoch", "four-losses", every_epoch("L_B- <= L_B+ at theta")),
    Claim("L_B <= L_B+ at theta + eps", "in every epoch", "four-losses", every_epoch("L_B <= L_B+ at theta + eps")),
    Claim("B+ is nearer to B than B-", "much higher cosine", "cosines", higher_cosine("B+", "B-")),
    Claim("B+ is nearer to B than a random half", "much higher cosine", "cosines", higher_cosine("B+", "B_rand")),
    Claim(
        "The loss of B+ rises most along eps",
        "as in its Figure 2",
        "sds-illustration",
        every_batch("B+ rises more than B- wherever looked"),
    ),
    Claim("Smaller beta is more linear", "zeta falls with beta", "linearity", more_linear("divided")),
    Claim(
        "Smaller beta is more linear, eps not divided by beta",
        "zeta falls with beta",
        "linearity",
        more_linear("undivided"),
    ),
    Claim("g(N, beta) has the form k1 (1-b) + k2 (1-b)/(Nb)", "R² .9983 and .9989", "swp-savings", fits),
    Claim("SAM's minimum is flatter: landscape", "significantly", "landscapes", flatter("SAM", "rise")),
    Claim("ESAM's minimum is flatter: landscape", "significantly", "landscapes", flatter("ESAM", "rise")),
    Claim("SAM's minimum is flatter: lambda_max", "significantly", "landscapes", flatter("SAM", "eigenvalue")),
    Claim("ESAM's minimum is flatter: lambda_max", "significantly", "landscapes", flatter("ESAM", "eigenvalue")),
    Claim("SAM's minimum is flatter: trace", "significantly", "landscapes", flatter("SAM", "trace")),
    Claim("ESAM's minimum is flatter: trace", "significantly", "landscapes", flatter("ESAM", "trace")),
    Claim(
        "SAM's minimum is flatter: adversarial plane",
        "significantly",
        "adversarial-landscapes",
        flatter("SAM", "rise"),
    ),
    Claim(
        "ESAM's minimum is flatter: adversarial plane",
        "significantly",
        "adversarial-landscapes",
        flatter("ESAM", "rise"),
    ),
)
