"""Table 3: what SWP and SDS each add, ResNet-18 and WRN-28-10 on both CIFARs.

Paper: the runs of Table 1 and ESAM-SWP (gamma 1) and ESAM-SDS (beta 1) beside them. CPU scale: likewise.
"""

from __future__ import annotations

from .tables import FIVE, PaperTable, printed, table_item

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

ITEM = table_item(
    "table3",
    "Table 3",
    "Ablation: SAM with SWP, with SDS, with both",
    heading="What SWP and SDS add",
    paper=PAPER,
    methods=lambda *_: FIVE,
    tasks=lambda scale: scale.ablation,
    notes=("The paper's Tables 1 and 3 differ in three numbers of the same runs; each is quoted as it is printed.",),
)
