"""Table 1: CIFAR-10 and CIFAR-100, three networks, by SGD, SAM and ESAM.

Paper: 3 seeds each, 200 or 300 epochs. CPU scale: ResNet-8, WRN-10-1 and PyramidNet-8 on 2,500 images, 3 seeds.
"""

from __future__ import annotations

from ..engine.scale import ExperimentScale, PaperTask
from .tables import RANDOM_TASKS, THREE, PaperTable, printed, table_item

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


def methods_on(scale: ExperimentScale, task: PaperTask) -> tuple[str, ...]:
    """Return the methods that have a row on a task."""
    return (*THREE, *scale.beside) if task in RANDOM_TASKS else THREE


ITEM = table_item(
    "table1",
    "Table 1",
    "CIFAR-10 and CIFAR-100 by SGD, SAM and ESAM",
    heading="Accuracy and training speed on CIFAR",
    paper=PAPER,
    methods=methods_on,
    notes=(
        "The paper reports the best accuracy over epochs. Ours is the last; the best of several evaluations stands "
        "beside it where a run was evaluated more than once.",
        "Speed is that of steps timed in turn in one run on random images: by processor time on one CPU thread, else "
        "by the clock. The ratio to SAM's is that of total times.",
    ),
)
