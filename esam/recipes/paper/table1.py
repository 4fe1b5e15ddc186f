"""Table 1: CIFAR-10 and CIFAR-100, three networks, by SGD, SAM and ESAM.

Paper: 3 seeds each, 200 or 300 epochs. CPU scale: ResNet-8, WRN-10-1 and PyramidNet-8 on 2,500 images, 3 seeds.
"""

from __future__ import annotations

from esam.reproduce.item import Needs
from esam.reproduce.scale import Scale, Task

from .common import THREE, Printed, rows_of
from .tables import table_item

PAPER: dict[Task, dict[str, Printed]] = {
    ("ResNet-18", "CIFAR-10"): {
        "SGD": Printed(95.41, 0.03, 3387),
        "SAM": Printed(96.52, 0.13, 1717, 100.0),
        "ESAM": Printed(96.56, 0.08, 2409, 140.3),
    },
    ("ResNet-18", "CIFAR-100"): {
        "SGD": Printed(78.17, 0.05, 3483),
        "SAM": Printed(80.17, 0.17, 1730, 100.0),
        "ESAM": Printed(80.41, 0.10, 2423, 140.0),
    },
    ("WRN-28-10", "CIFAR-10"): {
        "SGD": Printed(96.34, 0.12, 801),
        "SAM": Printed(97.27, 0.11, 396, 100.0),
        "ESAM": Printed(97.29, 0.11, 550, 138.9),
    },
    ("WRN-28-10", "CIFAR-100"): {
        "SGD": Printed(81.56, 0.13, 792),
        "SAM": Printed(83.42, 0.04, 391, 100.0),
        "ESAM": Printed(84.51, 0.01, 545, 139.4),
    },
    ("PyramidNet-110", "CIFAR-10"): {
        "SGD": Printed(96.62, 0.10, 580),
        "SAM": Printed(97.30, 0.10, 289, 100.0),
        "ESAM": Printed(97.81, 0.01, 401, 138.7),
    },
    ("PyramidNet-110", "CIFAR-100"): {
        "SGD": Printed(81.89, 0.17, 555),
        "SAM": Printed(84.46, 0.04, 276, 100.0),
        "ESAM": Printed(85.56, 0.05, 381, 137.9),
    },
}


def needs(scale: Scale) -> Needs:
    """Return the runs of every network on both CIFARs."""
    rows = [
        row
        for task, comparison in scale.cifar.items()
        for row in rows_of(task, comparison, THREE, default=task in scale.defaults)
    ]
    return Needs(rows=tuple(rows))


ITEM = table_item(
    "table1",
    "Table 1",
    "CIFAR-10 and CIFAR-100 by SGD, SAM and ESAM",
    heading="Accuracy and training speed on CIFAR",
    needs=needs,
    paper=PAPER,
    notes=(
        "The paper reports the best accuracy over epochs; ours is the last, with the best beside it. Speed is of "
        "processor time where a run had one CPU thread, and its ratio to SAM's is taken seed by seed.",
    ),
)
