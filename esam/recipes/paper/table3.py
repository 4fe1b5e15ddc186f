"""Table 3: what SWP and SDS each add, ResNet-18 and WRN-28-10 on both CIFARs.

Paper: the runs of Table 1 and ESAM-SWP (gamma 1) and ESAM-SDS (beta 1) beside them. CPU scale: likewise.
"""

from __future__ import annotations

from esam.reproduce.item import Needs
from esam.reproduce.scale import Scale, Task

from .common import FIVE, Printed, rows_of
from .tables import table_item

PAPER: dict[Task, dict[str, Printed]] = {
    ("ResNet-18", "CIFAR-10"): {
        "SGD": Printed(95.41, None, 3387),
        "SAM": Printed(96.52, None, 1717, 100.0),
        "ESAM-SWP": Printed(96.74, None, 1896, 110.5),
        "ESAM-SDS": Printed(96.45, None, 2105, 122.6),
        "ESAM": Printed(96.56, None, 2409, 140.3),
    },
    ("ResNet-18", "CIFAR-100"): {
        "SGD": Printed(78.17, None, 3438),
        "SAM": Printed(80.17, None, 1730, 100.0),
        "ESAM-SWP": Printed(80.53, None, 1887, 109.1),
        "ESAM-SDS": Printed(80.38, None, 2103, 121.5),
        "ESAM": Printed(80.41, None, 2423, 140.9),
    },
    ("WRN-28-10", "CIFAR-10"): {
        "SGD": Printed(96.34, None, 801),
        "SAM": Printed(97.27, None, 396, 100.0),
        "ESAM-SWP": Printed(97.37, None, 430, 108.5),
        "ESAM-SDS": Printed(97.24, None, 495, 124.8),
        "ESAM": Printed(97.29, None, 551, 138.9),
    },
    ("WRN-28-10", "CIFAR-100"): {
        "SGD": Printed(81.56, None, 792),
        "SAM": Printed(83.42, None, 391, 100.0),
        "ESAM-SWP": Printed(84.44, None, 423, 108.3),
        "ESAM-SDS": Printed(84.46, None, 492, 125.8),
        "ESAM": Printed(84.51, None, 545, 139.4),
    },
}


def needs(scale: Scale) -> Needs:
    """Return the runs of the four tasks by five methods."""
    tasks = [task for task in scale.cifar if task in PAPER]
    return Needs(rows=tuple(row for task in tasks for row in rows_of(task, scale.cifar[task], FIVE)))


ITEM = table_item(
    "table3",
    "Table 3",
    "Ablation: SAM with SWP, with SDS, with both",
    heading="What SWP and SDS add",
    needs=needs,
    paper=PAPER,
    notes=("The paper's Tables 1 and 3 differ in three numbers of the same runs; each is quoted as it is printed.",),
)
