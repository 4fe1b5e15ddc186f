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
from .hyperparameters import CIFAR4, CIFAR6, RESNET
from .results import Claim, Results, at_least, more_accurate, speed_claim
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


tables = partial(make_tables, TITLE, PAPER)


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the table, and Figure 1's column alone."""
    figure1 = {FIGURE1: PAPER[FIGURE1]}
    return [
        *draw_table("table1", "Table 1", PAPER, results, folder),
        *draw_table("figure1", "Figure 1", figure1, results, folder),
    ]


def _sams_decay(results: Results) -> Mapping[str, Mapping[str, Any]]:
    return {"base": {"weight_decay": SAMS_DECAY}}


TUNED = "tuned on the test set"
CLAIMS = (
    Claim("SAM is more accurate than SGD", "+0.68 to +2.57", more_accurate(CIFAR6, "sam", "base")),
    Claim("ESAM is more accurate than SGD", "+0.95 to +3.67", more_accurate(CIFAR6, "esam", "base")),
    Claim("ESAM is at least as accurate as SAM", "+0.02 to +1.10", at_least(CIFAR6, "esam", "sam")),
    Claim("ESAM is more accurate than SAM", "in all six", more_accurate(CIFAR6, "esam", "sam")),
    Claim("SAM over SGD at SAM's decay", "no control", more_accurate(CIFAR4, "sam", "base", changes=_sams_decay)),
    Claim("ESAM over SGD at SAM's decay", "no control", more_accurate(CIFAR4, "esam", "base", changes=_sams_decay)),
    Claim("SAM over SGD, each at its own best", TUNED, more_accurate([RESNET], "sam", "base", changes=best_points)),
    Claim("ESAM over SGD, each at its own best", TUNED, more_accurate([RESNET], "esam", "base", changes=best_points)),
    Claim("ESAM at least SAM, each at its own best", TUNED, at_least([RESNET], "esam", "sam", changes=best_points)),
    Claim(
        "SAM takes twice SGD's time",
        "1.97 to 2.01",
        speed_claim(CIFAR6, "sam", 1 / 2.3, of="base", most=1 / 1.7, gpu=False),
    ),
    Claim("ESAM takes 40 % more time than SGD", "41 to 46 %", speed_claim(CIFAR6, "esam", 1 / 1.46, of="base")),
    Claim("ESAM is faster than SAM", "in every table", speed_claim(CIFAR6, "esam", 1.0, gpu=False)),
    Claim("ESAM's speed on CIFAR", "137.9 to 140.3 % of SAM's", speed_claim(CIFAR6, "esam", 1.379)),
)
