"""Which claims have which verdict? For the command, and for docs/reproduce.md, whose blocks docs/tables.py writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from esam.report.sheets import Sheet, as_markdown
from esam.train.record import read_pack

from .items import ITEMS
from .plan import runs_sheet
from .results import Claim, Results, open_results
from .rules import CONTRADICTED, HOLDS, INCONCLUSIVE, NOT_RUN, Verdict
from .store import FIRST_ROUND, PACK

PICTURES = PACK.parents[1] / "docs" / "paper"
Judged = tuple[str, Claim, Verdict]
"""A claim with its item and its verdict."""


def judged(results: Results) -> list[Judged]:
    """Return every claim with its item and its verdict."""
    return [(name, claim, claim.judge(results)) for name, module in ITEMS.items() for claim in module.CLAIMS]


def claims_sheet(found: Sequence[Judged], *, short: bool = False) -> Sheet:
    """Return one line a claim: the paper's figure, the verdict, what was measured, the reason."""
    rows = [(f"{name}: {claim.text}", claim.paper, one.verdict, one.words(short=short)) for name, claim, one in found]
    return Sheet("", ("Claim", "Paper", "Verdict", "Measured, and why it cannot be told"), tuple(rows))


def draw_item(name: str, results: Results, folder: Path) -> list[Path]:
    """Draw an item's pictures into a folder; A.7 has none."""
    return ITEMS[name].draw(results, folder) if hasattr(ITEMS[name], "draw") else []


def counted(verdicts: Iterable[str]) -> str:
    """Say how many claims have each verdict."""
    counts = Counter(verdicts)
    order = (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_RUN)
    return f"{counts.total()} claims: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in order)


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
    words = "\n\nNot run yet: " + ", ".join(f"{n} of {name}" for name, n in missing.items()) + "." if missing else ""
    return as_markdown(claims_sheet(measured, short=True)) + words


def first_round() -> str:
    """Say how many claims had which verdict in the first round, by its own rules."""
    return f"Its verdicts: {counted(line['verdict'] for line in read_pack(FIRST_ROUND)['cpu/verdicts.jsonl'])}."


def runs() -> str:
    """Return what of the run list is done."""
    return as_markdown(runs_sheet(committed()))


def pictures() -> str:
    """Return the pictures that are committed."""
    found = sorted(PICTURES.glob("*.png"))
    return "\n\n".join(f"![{path.stem}](paper/{path.name})" for path in found)
