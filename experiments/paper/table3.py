"""Table 3: what SWP and SDS each add, ResNet-18 and WRN-28-10 on both CIFARs.

"SWP improves SAM's training speed by 8.3 % to 10.5 %, and achieves better performance at the same time"; SDS is faster
"by 21.5 % to 25.8 %", "outperforms SAM's performance on CIFAR100 datasets, and achieves comparable performance on
CIFAR10". The paper's Tables 1 and 3 differ in three numbers of the same runs; each is quoted as it is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from . import rules
from .hyperparameters import CIFAR4, FIVE, Scale
from .jobs import Job, training
from .results import Claim, Results, accuracy_claim, figure_of_a_gpu, speed_claim
from .rules import Verdict
from .tables import PaperTable, printed, table_item

NUMBER, TITLE = "Table 3", "Ablation: SAM with SWP, with SDS, with both"
PAPER: PaperTable = {
    ("ResNet-18", "CIFAR-10"): printed(
        FIVE, (95.41, 3387), (96.52, 1717, 100.0), (96.74, 1896, 110.5), (96.45, 2105, 122.6), (96.56, 2409, 140.3)
    ),
    ("ResNet-18", "CIFAR-100"): printed(
        FIVE, (78.17, 3438), (80.17, 1730, 100.0), (80.53, 1887, 109.1), (80.38, 2103, 121.5), (80.41, 2423, 140.9)
    ),
    ("WRN-28-10", "CIFAR-10"): printed(
        FIVE, (96.34, 801), (97.27, 396, 100.0), (97.37, 430, 108.5), (97.24, 495, 124.8), (97.29, 551, 138.9)
    ),
    ("WRN-28-10", "CIFAR-100"): printed(
        FIVE, (81.56, 792), (83.42, 391, 100.0), (84.44, 423, 108.3), (84.46, 492, 125.8), (84.51, 545, 139.4)
    ),
}
CIFAR100 = tuple(column for column in CIFAR4 if column[1] == "CIFAR-100")


def jobs(scale: Scale, seeds: Sequence[int]) -> list[Job]:
    """Return SWP and SDS alone, on the four columns; SGD, SAM and ESAM are Table 1's."""
    return [
        training(scale, column, method, seed)
        for seed in seeds
        for column in CIFAR4
        for method in ("esam-swp", "esam-sds")
    ]


tables, draw = table_item("table3", PAPER, "Table 3")


def _order_of_speeds(results: Results) -> Verdict:
    """Judge that SAM < SWP < SDS < ESAM in speed, each by the interval of the ratio over processes."""
    verdicts = []
    for column in CIFAR4:
        times = results.speeds(column)
        order = ("sam", "esam-swp", "esam-sds", "esam")
        if not all(step in times for step in order):
            continue
        for slow, fast in pairwise(order):
            ratio = rules.speed_ratio([a / b for a, b in zip(times[slow], times[fast], strict=True)])
            verdicts.append(
                rules.above(ratio, 1.0, f"{results.title(column)}: {fast} {100 * ratio.mean:.0f} % of {slow}")
            )
    return rules.worst(verdicts) if verdicts else Verdict(rules.NOT_RUN, "not timed")


CLAIMS = (
    Claim("SWP is at least as accurate as SAM", "+0.10 to +1.02", accuracy_claim(CIFAR4, "esam-swp", "sam")),
    Claim("SWP is more accurate than SAM", "in all four", accuracy_claim(CIFAR4, "esam-swp", "sam", better=True)),
    Claim("SDS is at least as accurate as SAM", "-0.07 to +1.04", accuracy_claim(CIFAR4, "esam-sds", "sam")),
    Claim(
        "SDS is more accurate than SAM on CIFAR-100",
        "+0.21, +1.04",
        accuracy_claim(CIFAR100, "esam-sds", "sam", better=True),
    ),
    Claim("SWP's speed", "108.3 to 110.5 % of SAM's", figure_of_a_gpu(speed_claim(CIFAR4, "esam-swp", 1.083))),
    Claim("SDS's speed", "121.5 to 125.8 % of SAM's", figure_of_a_gpu(speed_claim(CIFAR4, "esam-sds", 1.215))),
    Claim("Speeds rise from SAM to SWP, SDS and ESAM", "in all four", _order_of_speeds),
)
