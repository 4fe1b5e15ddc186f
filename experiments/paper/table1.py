"""Table 1 and Figure 1: CIFAR-10 and CIFAR-100 by SGD, SAM and ESAM.

"ESAM outperforms SAM in the six sets of experiments"; "improves the efficiency over SAM from requiring 100 % extra
computational overhead to 40 %". Figure 1 is the column of PyramidNet on CIFAR-100. Beside the paper's settings: SGD at
SAM's weight decay, and every method at its own best by the printed grid (appendix7).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .appendix7 import best_points
from .hyperparameters import CIFAR4, CIFAR6, RESNET, THREE, Scale
from .jobs import Job, training
from .results import Claim, Results, accuracy_claim, figure_of_a_gpu, judge_gaps, speed_claim
from .rules import NOT_RUN, Verdict, minus
from .speed import timings
from .tables import PaperTable, printed, table_item

NUMBER, TITLE = "Table 1, Figure 1", "CIFAR-10 and CIFAR-100 by SGD, SAM and ESAM"
PAPER: PaperTable = {
    ("ResNet-18", "CIFAR-10"): printed(
        THREE, (95.41, 3387, None, 0.03), (96.52, 1717, 100.0, 0.13), (96.56, 2409, 140.3, 0.08)
    ),
    ("ResNet-18", "CIFAR-100"): printed(
        THREE, (78.17, 3483, None, 0.05), (80.17, 1730, 100.0, 0.17), (80.41, 2423, 140.0, 0.10)
    ),
    ("WRN-28-10", "CIFAR-10"): printed(
        THREE, (96.34, 801, None, 0.12), (97.27, 396, 100.0, 0.11), (97.29, 550, 138.9, 0.11)
    ),
    ("WRN-28-10", "CIFAR-100"): printed(
        THREE, (81.56, 792, None, 0.13), (83.42, 391, 100.0, 0.04), (84.51, 545, 139.4, 0.01)
    ),
    ("PyramidNet-110", "CIFAR-10"): printed(
        THREE, (96.62, 580, None, 0.10), (97.30, 289, 100.0, 0.10), (97.81, 401, 138.7, 0.01)
    ),
    ("PyramidNet-110", "CIFAR-100"): printed(
        THREE, (81.89, 555, None, 0.17), (84.46, 276, 100.0, 0.04), (85.56, 381, 137.9, 0.05)
    ),
}
FIGURE1 = ("PyramidNet-110", "CIFAR-100")
SAMS_DECAY = 1e-3


def first_jobs(scale: Scale) -> list[Job]:
    """Return Figure 1's own column, a few seeds."""
    return [training(scale, FIGURE1, method, seed) for seed in range(scale.few) for method in THREE]


def jobs(scale: Scale) -> list[Job]:
    """Return the three methods on the six columns, all seeds, seed by seed."""
    seeds = range(scale.seeds)
    return [training(scale, column, method, seed) for seed in seeds for column in CIFAR6 for method in THREE]


def timing_jobs(scale: Scale) -> list[Job]:
    """Return the timings of every column's steps; the study's values are timed with them where there is one."""
    columns = [column for column in scale.columns if column in CIFAR6]
    return [
        job for column in columns for job in timings(scale, column, study=column[1] == "CIFAR-10" and column in CIFAR4)
    ]


def decay_jobs(scale: Scale) -> list[Job]:
    """Return the control: SGD at SAM's weight decay, where the paper gives SGD another."""
    seeds = range(scale.seeds)
    return [training(scale, column, "base", seed, weight_decay=SAMS_DECAY) for seed in seeds for column in CIFAR4]


def own_best_jobs(results: Results) -> list[Job]:
    """Return the three methods at their own best, once the grid has been searched."""
    best, seeds = best_points(results), range(results.scale.seeds)
    return [training(results.scale, RESNET, method, seed, **best[method]) for seed in seeds for method in best]


tables, _draw_table1 = table_item("table1", PAPER, "Table 1")
_, _draw_figure1 = table_item("figure1", {FIGURE1: PAPER[FIGURE1]}, "Figure 1")


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the table, and Figure 1's column alone."""
    return _draw_table1(results, folder) + _draw_figure1(results, folder)


def _own_best(ours: str, theirs: str, *, better: bool) -> Any:
    def judge(results: Results) -> Verdict:
        best = best_points(results)
        if ours not in best or theirs not in best:
            return Verdict(NOT_RUN, "the grid has not been searched")
        one, two = (results.accuracy(RESNET, method, **best[method]) for method in (ours, theirs))
        gap = minus(one, two)
        if not gap:
            return Verdict(NOT_RUN, "no runs at own best")
        fits = {method: results.fit(RESNET, method, **best[method]) for method in (ours, theirs)}
        leads = [
            minus(results.accuracy(RESNET, "sam", **best["sam"]), results.accuracy(RESNET, "base", **best["base"]))
        ]
        return judge_gaps(results, {RESNET: gap}, fits, leads if theirs == "sam" else [], better=better)

    return judge


DECAY = {"weight_decay": SAMS_DECAY}
CLAIMS = (
    Claim("SAM is more accurate than SGD", "+0.68 to +2.57", accuracy_claim(CIFAR6, "sam", "base", better=True)),
    Claim("ESAM is more accurate than SGD", "+0.95 to +3.67", accuracy_claim(CIFAR6, "esam", "base", better=True)),
    Claim("ESAM is at least as accurate as SAM", "+0.02 to +1.10", accuracy_claim(CIFAR6, "esam", "sam")),
    Claim("ESAM is more accurate than SAM", "in all six", accuracy_claim(CIFAR6, "esam", "sam", better=True)),
    Claim(
        "SAM over SGD at SAM's decay",
        "no control",
        accuracy_claim(CIFAR4, "sam", "base", better=True, theirs_changes=DECAY),
    ),
    Claim(
        "ESAM over SGD at SAM's decay",
        "no control",
        accuracy_claim(CIFAR4, "esam", "base", better=True, theirs_changes=DECAY),
    ),
    Claim("SAM over SGD, each at its own best", "tuned on the test set", _own_best("sam", "base", better=True)),
    Claim("ESAM over SGD, each at its own best", "tuned on the test set", _own_best("esam", "base", better=True)),
    Claim("ESAM at least SAM, each at its own best", "tuned on the test set", _own_best("esam", "sam", better=False)),
    Claim("SAM takes twice SGD's time", "1.97 to 2.01", speed_claim(CIFAR6, "sam", 1 / 2.3, of="base", most=1 / 1.7)),
    Claim(
        "ESAM takes 40 % more time than SGD",
        "41 to 46 %",
        figure_of_a_gpu(speed_claim(CIFAR6, "esam", 1 / 1.46, of="base")),
    ),
    Claim("ESAM is faster than SAM", "in every table", speed_claim(CIFAR6, "esam", 1.0)),
    Claim("ESAM's speed on CIFAR", "137.9 to 140.3 % of SAM's", figure_of_a_gpu(speed_claim(CIFAR6, "esam", 1.379))),
)
