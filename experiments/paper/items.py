"""The paper's tables and figures by name, in what order their runs are done, and all claims."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from . import appendix2, appendix3, appendix4, appendix7, figure3, figure4, table1, table2, table3, vit
from .hyperparameters import Scale
from .jobs import Job
from .results import Claim, Results
from .rules import Verdict

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


def jobs_of(name: str, results: Results) -> list[Job]:
    """Return the jobs of one item, in order."""
    scale = results.scale
    every = range(scale.seeds)
    base = table1.jobs(scale)
    found: dict[str, Iterable[Job]] = {
        "table1": [*base, *table1.timing_jobs(scale), *table1.decay_jobs(scale), *table1.own_best_jobs(results)],
        "table2": table2.jobs(scale, every),
        "table3": [*base, *table3.jobs(scale, every), *table1.timing_jobs(scale)],
        "figure3": [*base, *figure3.jobs(scale, every), *table1.timing_jobs(scale)],
        "figure4": [
            *base,
            *table2.jobs(scale, every),
            *figure4.flatness_jobs(scale, every),
            *figure4.plane_jobs(scale),
        ],
        "appendix2": appendix2.jobs(scale),
        "appendix3": appendix2.jobs(scale),
        "appendix4": appendix4.jobs(scale),
        "appendix7": appendix7.jobs(scale),
        "vit": vit.jobs(scale, every),
    }
    return unique(found[name])


def run_list(results: Results) -> list[tuple[str, list[Job]]]:
    """Return all that is to be run, by what it is for, in the order in which it is worth most.

    What has three seeds at first gets the others at the end.
    """
    scale = results.scale
    few, rest, every = range(scale.few), range(scale.few, scale.seeds), range(scale.seeds)
    return [
        ("PyramidNet on CIFAR-100: Figure 1", table1.first_jobs(scale)),
        ("Table 3: SWP and SDS on four tasks", table3.jobs(scale, few)),
        ("Table 1: six tasks, all seeds", table1.jobs(scale)),
        ("Speeds, several processes", table1.timing_jobs(scale)),
        ("Figure 3: seven betas and gammas, two nets", figure3.jobs(scale, few)),
        ("A.4 at the paper's width", appendix4.jobs(scale)),
        ("Table 2 on ImageNet's stand-in", table2.jobs(scale, few)),
        ("ViT", vit.jobs(scale, few)),
        ("Figure 4 and A.5: planes", figure4.plane_jobs(scale)),
        ("Flatness of every minimum", figure4.flatness_jobs(scale, every)),
        ("A.2 and A.3: inside a batch", appendix2.jobs(scale)),
        ("A.7: the printed grid", appendix7.jobs(scale)),
        ("SGD at SAM's weight decay", table1.decay_jobs(scale)),
        ("Each method at its own best", table1.own_best_jobs(results)),
        ("The other seeds of Table 3", table3.jobs(scale, rest)),
        ("The other seeds of Table 2 and the ViT", [*table2.jobs(scale, rest), *vit.jobs(scale, rest)]),
        ("The other seeds of Figure 3", figure3.jobs(scale, rest)),
    ]


def unique(jobs: Iterable[Job]) -> list[Job]:
    """Return each job once."""
    return list({job.name: job for job in jobs}.values())


def every_claim() -> list[tuple[str, Claim]]:
    """Return all claims with their items."""
    return [(name, claim) for name, module in ITEMS.items() for claim in module.CLAIMS]


def judged(results: Results) -> list[tuple[str, Claim, Verdict]]:
    """Return every claim with its verdict."""
    return [(name, claim, claim.judge(results)) for name, claim in every_claim()]


def find_job(results: Results, name: str) -> Job:
    """Return the job of a name."""
    scale: Scale = results.scale
    for _, jobs in run_list(results):
        for job in jobs:
            if job.name == name:
                return job
    for item in ITEMS:
        for job in jobs_of(item, results):
            if job.name == name:
                return job
    raise ValueError(f"there is no job {name!r} at the scale {scale.name}")
