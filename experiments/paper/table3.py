"""Table 3: what SWP and SDS each add, ResNet-18 and WRN-28-10 on both CIFARs.

"SWP improves SAM's training speed by 8.3 % to 10.5 %, and achieves better performance at the same time"; SDS is faster
"by 21.5 % to 25.8 %", "outperforms SAM's performance on CIFAR100 datasets, and achieves comparable performance on
CIFAR10". The paper's Tables 1 and 3 differ in three numbers of the same runs; each is quoted as it is printed.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from . import rules
from .hyperparameters import CIFAR4, LABELS, Column
from .results import Claim, Results, at_least, more_accurate, on_each, speed_claim
from .rules import Verdict
from .tables import PaperTable, draw_table, make_tables, printed

NUMBER, TITLE = "Table 3", "Ablation: SAM with SWP, with SDS, with both"
# fmt: off
#   accuracy, images/s of SGD, SAM, SWP, SDS and ESAM
PAPER: PaperTable = {
    ("ResNet-18", "CIFAR-10"):  printed((95.41, 3387), (96.52, 1717), (96.74, 1896), (96.45, 2105), (96.56, 2409)),
    ("ResNet-18", "CIFAR-100"): printed((78.17, 3438), (80.17, 1730), (80.53, 1887), (80.38, 2103), (80.41, 2423)),
    ("WRN-28-10", "CIFAR-10"):  printed((96.34, 801), (97.27, 396), (97.37, 430), (97.24, 495), (97.29, 551)),
    ("WRN-28-10", "CIFAR-100"): printed((81.56, 792), (83.42, 391), (84.44, 423), (84.46, 492), (84.51, 545)),
}
# fmt: on
CIFAR100 = tuple(column for column in CIFAR4 if column[1] == "CIFAR-100")


tables = partial(make_tables, TITLE, PAPER)
draw = partial(draw_table, "table3", "Table 3", PAPER)


def _order_of_speeds(results: Results, column: Column) -> Verdict | None:
    """Judge that SAM < SWP < SDS < ESAM in speed, each by the interval of the ratio over processes."""
    verdicts = []
    for slow, fast in pairwise(("sam", "esam-swp", "esam-sds", "esam")):
        if ratio := results.speed(column, fast, of=slow):
            words = f"{results.title(column)}: {LABELS[fast]} {100 * ratio.mean:.0f} % of {LABELS[slow]}"
            verdicts.append(rules.above(ratio, 1.0, words))
    return rules.worst(verdicts) if verdicts else None


CLAIMS = (
    Claim("SWP is at least as accurate as SAM", "+0.10 to +1.02", at_least(CIFAR4, "esam-swp", "sam")),
    Claim("SWP is more accurate than SAM", "in all four", more_accurate(CIFAR4, "esam-swp", "sam")),
    Claim("SDS is at least as accurate as SAM", "-0.07 to +1.04", at_least(CIFAR4, "esam-sds", "sam")),
    Claim("SDS is more accurate than SAM on CIFAR-100", "+0.21, +1.04", more_accurate(CIFAR100, "esam-sds", "sam")),
    Claim("SWP's speed", "108.3 to 110.5 % of SAM's", speed_claim(CIFAR4, "esam-swp", 1.083)),
    Claim("SDS's speed", "121.5 to 125.8 % of SAM's", speed_claim(CIFAR4, "esam-sds", 1.215)),
    Claim("Speeds rise from SAM to SWP, SDS and ESAM", "in all four", on_each(CIFAR4, _order_of_speeds, "not timed")),
)
