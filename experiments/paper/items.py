"""The paper's tables and figures by name, in what order their runs are done, and all claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType

from esam.report.sheets import Sheet

from . import appendix2, appendix3, appendix4, appendix7, figure3, figure4, table1, table2, table3, vit
from .jobs import Job
from .results import Claim, Results
from .rules import CONTRADICTED, HOLDS, INCONCLUSIVE, NOT_RUN, Verdict

ITEMS: dict[str, ModuleType] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "figure3": figure3,
    "figure4": figure4,
    "appendix2": appendix2,
    "appendix3": appendix3,
    "appendix4": appendix4,
    "appendix7": appendix7,
    "vit": vit,
}


@dataclass(frozen=True)
class Section:
    """Runs that are done together, and the items that need them."""

    title: str
    items: tuple[str, ...]
    jobs: Sequence[Job]
    fresh: bool = False
    """Whether each wants a process of its own."""
    gigabytes: float = 1.0
    """That one of them may take: no more run at a time than fit into this machine."""


def run_list(results: Results) -> list[Section]:
    """Return all that is to be run, in the order in which it is worth most; what is in two sections runs once."""
    scale = results.scale
    tables = ("table1", "table3", "figure3", "figure4")
    return [
        Section("Figure 1: PyramidNet on CIFAR-100", ("table1",), table1.figure1_jobs(scale)),
        Section("Table 3: SWP and SDS on four tasks", ("table3",), table3.jobs(scale)),
        Section("A.2 and A.3: ESAM, probed", (*tables, "appendix2", "appendix3"), appendix2.jobs(scale)),
        Section("Table 1: six tasks, all seeds", tables, table1.jobs(scale)),
        Section("Speeds on CIFAR, 5 processes", tables[:3], table1.timing_jobs(scale), fresh=True),
        Section("Figure 3: seven betas and gammas, two nets", ("figure3",), figure3.jobs(scale)),
        Section("A.4 at the paper's width", ("appendix4",), appendix4.jobs(scale), True, appendix4.gigabytes(scale)),
        Section("ViT", ("vit",), vit.jobs(scale)),
        Section("Table 2 on ImageNet's stand-in", ("table2", "figure4"), table2.jobs(scale)),
        Section("Speeds of the ViT, 5 processes", ("vit",), vit.timing_jobs(scale), fresh=True),
        Section("Speeds of Table 2, 5 processes", ("table2",), table2.timing_jobs(scale), fresh=True),
        Section("Figure 4 and A.5: planes", ("figure4",), figure4.jobs(scale)),
        Section("Flatness of every minimum", ("figure4",), figure4.flatness_jobs(scale)),
        Section("A.7: the printed grid", ("appendix7", "table1"), appendix7.jobs(scale)),
        Section("SGD at SAM's weight decay", ("table1",), table1.decay_jobs(scale)),
        Section("Each method at its own best", ("table1",), table1.own_best_jobs(results)),
    ]


def sections_of(names: Iterable[str], results: Results) -> list[Section]:
    """Return the sections that some items need."""
    wanted = set(names)
    return [section for section in run_list(results) if wanted & set(section.items)]


def jobs_of(names: Iterable[str], results: Results) -> list[Job]:
    """Return the jobs that some items need, each once, in order."""
    return list({job.name: job for section in sections_of(names, results) for job in section.jobs}.values())


def find_job(results: Results, name: str) -> Job:
    """Return the job of a name."""
    for job in jobs_of(ITEMS, results):
        if job.name == name:
            return job
    raise ValueError(f"there is no job {name!r} at the scale {results.scale.name}")


def tables_of(name: str, results: Results) -> Sequence[Sheet]:
    """Return an item's tables; a figure has none."""
    module = ITEMS[name]
    return module.tables(results) if hasattr(module, "tables") else []


Judged = tuple[str, Claim, Verdict]
"""A claim with its item and its verdict."""


def judged(results: Results) -> list[Judged]:
    """Return every claim with its item and its verdict."""
    return [(name, claim, claim.judge(results)) for name, module in ITEMS.items() for claim in module.CLAIMS]


def claims_sheet(found: Sequence[Judged], *, short: bool = False) -> Sheet:
    """Return one line a claim: the paper's figure, the verdict, what was measured, the reason."""
    rows = [(f"{name}: {claim.text}", claim.paper, one.verdict, one.words(short=short)) for name, claim, one in found]
    return Sheet("", ("Claim", "Paper", "Verdict", "Measured, and why it cannot be told"), tuple(rows))


def counted(verdicts: Iterable[str]) -> str:
    """Say how many claims have each verdict."""
    counts = Counter(verdicts)
    order = (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_RUN)
    return f"{counts.total()} claims: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in order)
