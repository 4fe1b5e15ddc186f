"""What does docs/reproduce.md show of the committed records? Its blocks, written by docs/tables.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from esam.report.sheets import Sheet, as_markdown
from experiments.packs import read_pack

from .items import claims_sheet, counted, judged
from .plan import runs_sheet
from .results import Results, open_results
from .rules import NOT_RUN
from .store import FIRST_ROUND, PACK


def committed() -> Results:
    """Return what is committed."""
    return open_results("cpu", Path("nowhere"))


def counts() -> str:
    """Say how many claims have each verdict."""
    return f"**{counted(verdict.verdict for _, _, verdict in judged(committed()))}.**"


def claims() -> str:
    """Return one line a claim that has been measured, and where the others are."""
    found = judged(committed())
    measured = [row for row in found if row[2].verdict != NOT_RUN]
    missing = Counter(name for name, _, verdict in found if verdict.verdict == NOT_RUN)
    words = "Not run yet: " + ", ".join(f"{n} of {name}" for name, n in missing.items()) + "." if missing else ""
    return "\n\n".join(filter(None, (as_markdown(claims_sheet(measured, short=True)) if measured else "", words)))


def first_round() -> str:
    """Return the verdicts of the first round, by its own rules and words; only their number once there is a second."""
    lines = read_pack(FIRST_ROUND)["cpu/verdicts.jsonl"]
    words = f"Its verdicts: {counted(line['verdict'] for line in lines)}."
    if PACK.exists():
        return words
    rows = tuple((line["claim"], line["verdict"]) for line in lines)
    return f"{words}\n\n{as_markdown(Sheet('', ('Claim', 'Verdict'), rows))}"


def runs() -> str:
    """Return what of the run list is done."""
    return as_markdown(runs_sheet(committed()))


def pictures() -> str:
    """Return the pictures that are committed."""
    found = sorted((PACK.parents[1] / "docs" / "paper").glob("*.png"))
    return "\n\n".join(f"![{path.stem}](paper/{path.name})" for path in found)
