"""What does docs/reproduce.md show of the records? Its tables, written by docs/tables.py."""

from __future__ import annotations

from collections import Counter

from esam.report.sheets import Sheet, as_markdown
from esam.train.packed import read_pack

from .hyperparameters import cpu_scale
from .items import ITEMS, judged
from .plan import runs_sheet
from .results import Results
from .rules import CONTRADICTED, HOLDS, INCONCLUSIVE, NOT_RUN
from .store import FIRST_ROUND, PACK, Store

ORDER = (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_RUN)
EARLIER = {
    "SAM is more accurate than SGD": "SAM's accuracy is at least SGD's, CIFAR",
    "ESAM is more accurate than SGD": "ESAM's accuracy is at least SGD's, CIFAR",
    "ESAM is at least as accurate as SAM": "ESAM's accuracy is at least SAM's, CIFAR",
    "SWP is at least as accurate as SAM": "SWP's accuracy is at least SAM's",
    "SDS is at least as accurate as SAM": "SDS's accuracy is that of SAM",
    "gamma = .5 is the smallest that keeps SAM's accuracy": "gamma = .5 is the smallest that keeps SAM's accuracy",
    "The loss of B+ rises more than B-'s along eps": "The loss of B+ rises most along eps",
    "A smaller beta is more linear": "Smaller beta is more linear",
    "A smaller beta is more linear, eps not divided by beta": "Smaller beta is more linear, eps not divided by beta",
    "g(N, beta) has the paper's form": "g(N, beta) has the form k1 (1-b) + k2 (1-b)/(Nb)",
    "SAM's minimum is flatter: rise on a random plane": "SAM's minimum is flatter: landscape",
    "ESAM's minimum is flatter: rise on a random plane": "ESAM's minimum is flatter: landscape",
    "SAM's minimum is flatter: rise on an adversarial plane": "SAM's minimum is flatter: adversarial plane",
    "ESAM's minimum is flatter: rise on an adversarial plane": "ESAM's minimum is flatter: adversarial plane",
    "SAM's minimum is flatter: eigenvalue / loss": "SAM's minimum is flatter: lambda_max",
    "ESAM's minimum is flatter: eigenvalue / loss": "ESAM's minimum is flatter: lambda_max",
    "SAM's minimum is flatter: trace / loss": "SAM's minimum is flatter: trace",
    "ESAM's minimum is flatter: trace / loss": "ESAM's minimum is flatter: trace",
}
"""By a claim's words now: its words in the first round, where they differ."""


def committed() -> Results:
    """Return what is committed."""
    return Results(Store(PACK.parent / "nowhere", PACK), cpu_scale())


def first_round() -> dict[str, str]:
    """Return the verdicts of the first round, by its own rules and words."""
    return {line["claim"]: line["verdict"] for line in read_pack(FIRST_ROUND)["cpu/verdicts.jsonl"]}


def counts() -> str:
    """Say how many claims have each verdict, in both rounds."""
    now = Counter(verdict.verdict for _, _, verdict in judged(committed()))
    then = Counter(first_round().values())
    here, before = (", ".join(f"{found[verdict]} {verdict}" for verdict in ORDER) for found in (now, then))
    return f"**{now.total()} claims: {here}.** The first round, by its own rules: {then.total()} claims, {before}."


def claims_table() -> str:
    """Return one line a claim."""
    earlier, rows = first_round(), []
    for _, claim, verdict in judged(committed()):
        words = "" if verdict.verdict == NOT_RUN else verdict.measured
        words += f"; {verdict.reason}" if verdict.reason else ""
        old = earlier.get(EARLIER.get(claim.text, claim.text), "–")
        rows.append((claim.text, claim.paper, verdict.verdict, words, old))
    return as_markdown(Sheet("", ("Claim", "Paper", "Verdict", "Measured, and why", "First round"), tuple(rows)))


def runs_table() -> str:
    """Return what of the run list is done."""
    return as_markdown(runs_sheet(committed()))


def pictures() -> str:
    """Return the pictures that are committed."""
    found = sorted((PACK.parents[1] / "docs" / "paper").glob("*.png"))
    return "\n\n".join(f"![{path.stem}](paper/{path.name})" for path in found) or "No pictures of this round yet."


def item_tables() -> str:
    """Return the tables of every item that has been measured."""
    results = committed()
    sheets = [sheet for module in ITEMS.values() for sheet in module.tables(results) if sheet.rows]
    return "\n\n".join(f"{sheet.title}\n\n{as_markdown(sheet)}" for sheet in sheets) or "Nothing of this round yet."
