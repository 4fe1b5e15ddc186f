"""Table 1 and Figure 1: CIFAR-10 and CIFAR-100 by SGD, SAM and ESAM.

"ESAM outperforms SAM in the six sets of experiments"; "improves the efficiency over SAM from requiring 100 % extra
computational overhead to 40 %". Figure 1 is the column of PyramidNet on CIFAR-100. Beside the paper's settings: SGD at
SAM's weight decay, and every method at its own best by the printed grid (appendix7).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .appendix7 import best_points
from .hyperparameters import CIFAR4, CIFAR6, RESNET, THREE, Scale
from .jobs import Job, training
from .results import Claim, Results, at_least, more_accurate, speed_claim
from .speed import timings
from .tables import PaperTable, draw_table, make_tables, printed

NUMBER, TITLE = "Table 1, Figure 1", "CIFAR-10 and CIFAR-100 by SGD, SAM and ESAM"
# fmt: off
#                                          SGD: accuracy, images/s, deviation; SAM and ESAM: the same
PAPER: PaperTable = {
    ("ResNet-18", "CIFAR-10"):       printed((95.41, 3387, .03), (96.52, 1717, .13), (96.56, 2409, .08)),
    ("ResNet-18", "CIFAR-100"):      printed((78.17, 3483, .05), (80.17, 1730, .17), (80.41, 2423, .10)),
    ("WRN-28-10", "CIFAR-10"):       printed((96.34, 801, .12), (97.27, 396, .11), (97.29, 550, .11)),
    ("WRN-28-10", "CIFAR-100"):      printed((81.56, 792, .13), (83.42, 391, .04), (84.51, 545, .01)),
    ("PyramidNet-110", "CIFAR-10"):  printed((96.62, 580, .10), (97.30, 289, .10), (97.81, 401, .01)),
    ("PyramidNet-110", "CIFAR-100"): printed((81.89, 555, .17), (84.46, 276, .04), (85.56, 381, .05)),
}
# fmt: on
FIGURE1 = ("PyramidNet-110", "CIFAR-100")
SAMS_DECAY = 1e-3


def figure1_jobs(scale: Scale) -> list[Job]:
    """Return Figure 1's own column, the first seeds."""
    return [training(scale, FIGURE1, method, seed) for seed in range(scale.few) for method in THREE]


def jobs(scale: Scale) -> list[Job]:
    """Return the three methods on the six columns, all seeds, seed by seed."""
    seeds = range(scale.seeds)
    return [training(scale, column, method, seed) for seed in seeds for column in CIFAR6 for method in THREE]


def timing_jobs(scale: Scale) -> list[Job]:
    """Return the timings of every column's steps, Figure 3's with them on its two columns."""
    return [
        job for column in CIFAR6 for job in timings(scale, column, study=column in CIFAR4 and column[1] == "CIFAR-10")
    ]


def decay_jobs(scale: Scale) -> list[Job]:
    """Return the control: SGD at SAM's weight decay, where the paper gives SGD another."""
    seeds = range(scale.seeds)
    return [training(scale, column, "base", seed, weight_decay=SAMS_DECAY) for seed in seeds for column in CIFAR4]


def own_best_jobs(results: Results) -> list[Job]:
    """Return the three methods at their own best, once the grid has been searched."""
    best, seeds = best_points(results), range(results.scale.seeds)
    return [training(results.scale, RESNET, method, seed, **best[method]) for seed in seeds for method in best]


tables = partial(make_tables, TITLE, PAPER)


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the table, and Figure 1's column alone."""
    figure1 = {FIGURE1: PAPER[FIGURE1]}
    return [
        *draw_table(folder / "table1.png", results, PAPER, "Table 1"),
        *draw_table(folder / "figure1.png", results, figure1, "Figure 1"),
    ]


def _sams_decay(results: Results, method: str) -> Mapping[str, Any]:
    return {"weight_decay": SAMS_DECAY} if method == "base" else {}


def _own_best(results: Results, method: str) -> Mapping[str, Any] | None:
    return best_points(results).get(method)


TUNED = "tuned on the test set"
CLAIMS = (
    Claim("SAM is more accurate than SGD", "+0.68 to +2.57", more_accurate(CIFAR6, "sam", "base")),
    Claim("ESAM is more accurate than SGD", "+0.95 to +3.67", more_accurate(CIFAR6, "esam", "base")),
    Claim("ESAM is at least as accurate as SAM", "+0.02 to +1.10", at_least(CIFAR6, "esam", "sam")),
    Claim("ESAM is more accurate than SAM", "in all six", more_accurate(CIFAR6, "esam", "sam")),
    Claim("SAM over SGD at SAM's decay", "no control", more_accurate(CIFAR4, "sam", "base", changes=_sams_decay)),
    Claim("ESAM over SGD at SAM's decay", "no control", more_accurate(CIFAR4, "esam", "base", changes=_sams_decay)),
    Claim("SAM over SGD, each at its own best", TUNED, more_accurate([RESNET], "sam", "base", changes=_own_best)),
    Claim("ESAM over SGD, each at its own best", TUNED, more_accurate([RESNET], "esam", "base", changes=_own_best)),
    Claim("ESAM at least SAM, each at its own best", TUNED, at_least([RESNET], "esam", "sam", changes=_own_best)),
    Claim(
        "SAM takes twice SGD's time",
        "1.97 to 2.01",
        speed_claim(CIFAR6, "sam", 1 / 2.3, of="base", most=1 / 1.7, gpu=False),
    ),
    Claim("ESAM takes 40 % more time than SGD", "41 to 46 %", speed_claim(CIFAR6, "esam", 1 / 1.46, of="base")),
    Claim("ESAM is faster than SAM", "in every table", speed_claim(CIFAR6, "esam", 1.0, gpu=False)),
    Claim("ESAM's speed on CIFAR", "137.9 to 140.3 % of SAM's", speed_claim(CIFAR6, "esam", 1.379)),
)
