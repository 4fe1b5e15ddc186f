"""The paper's tables and figures by name, and in what order their runs are done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from esam.runs.plan import CONFIG_NAME

from . import appendix2, appendix3, appendix4, appendix7, figure3, figure4, table1, table2, table3, vit
from .hyperparameters import CIFAR4, CIFAR6, FIVE, RESNET, STUDY, THREE
from .jobs import Job, timings, training, trainings
from .results import Results, open_results

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
    alone: bool = False
    """Whether one takes so much memory that a second would not fit."""


def run_list(results: Results) -> list[Section]:
    """Return all that is to be run, what settles most claims an hour first; what is in two sections runs once."""
    scale = results.scale
    few, seeds, tables = scale.few, scale.seeds, ("table1", "table3", "figure3", "figure4")
    probed, ablation = trainings(scale, few, CIFAR4, ["esam"]), ("esam-swp", "esam-sds")
    decay = trainings(scale, seeds, CIFAR4, ["base"], weight_decay=table1.SAMS_DECAY)
    best = appendix7.best_points(results) or {}
    own_best = [training(scale, RESNET, method, seed, **best[method]) for seed in range(seeds) for method in best]
    imagenet = figure4.flatness_jobs(scale, few, [figure4.IMAGENET])
    return [
        Section("A.2 and A.3: ESAM, probed", (*tables, "appendix2", "appendix3"), probed),
        # weights are not committed: flatness is measured soon after, on the machine that has them
        Section("Table 1, Figure 1: six tasks, the first seeds", tables, trainings(scale, few, CIFAR6, THREE)),
        Section("Flatness of their minima", ("figure4",), figure4.flatness_jobs(scale, few)),
        Section("Table 1, Figure 1: six tasks, all seeds", tables, trainings(scale, seeds, CIFAR6, THREE)),
        Section("Flatness of their minima, all seeds", ("figure4",), figure4.flatness_jobs(scale, seeds)),
        Section("Speeds on CIFAR, 5 processes", tables[:3], timings(scale, CIFAR6, STUDY), fresh=True),
        Section("Speeds of the ViT, 5 processes", ("vit",), timings(scale, vit.PAPER), fresh=True),
        Section("Speeds of Table 2, 5 processes", ("table2",), timings(scale, table2.PAPER), fresh=True),
        Section("SGD at SAM's weight decay", ("table1",), decay),
        Section("Table 3: SWP and SDS on four tasks", ("table3",), trainings(scale, seeds, CIFAR4, ablation)),
        Section("A.7: the printed grid", ("appendix7", "table1"), appendix7.jobs(scale)),
        Section("Each method at its own best", ("table1",), own_best),
        Section("A.4 at the paper's width", ("appendix4",), appendix4.jobs(scale), fresh=True, alone=True),
        Section("Table 2 on ImageNet's stand-in", ("table2", "figure4"), trainings(scale, few, table2.PAPER, THREE)),
        Section("Flatness on ImageNet's stand-in", ("figure4",), imagenet),
        Section("Figure 4 and A.5: planes", ("figure4",), figure4.jobs(scale)),
        Section("ViT", ("vit",), trainings(scale, few, vit.PAPER, FIVE)),
        Section("Figure 3: seven betas and gammas, two nets", ("figure3",), figure3.jobs(scale)),
    ]


def sections_of(names: Iterable[str], results: Results) -> list[Section]:
    """Return the sections that some items need."""
    wanted = set(names)
    return [section for section in run_list(results) if wanted & set(section.items)]


def jobs_of(names: Iterable[str], results: Results) -> list[Job]:
    """Return the jobs that some items need, each once, in order."""
    return list({job.name: job for section in sections_of(names, results) for job in section.jobs}.values())


def main(folder: Path) -> None:
    """Do the job whose name is in a folder, or go on with it: what a process of the pool does."""
    order = json.loads((folder / CONFIG_NAME).read_text())
    results = open_results(order["scale"], Path(order["out"]))
    (job,) = (job for job in jobs_of(ITEMS, results) if job.name == order["job"])
    job.do(results.store, results.scale)
