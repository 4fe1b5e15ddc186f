"""Table 2: ImageNet, ResNet-50 and ResNet-101, by SGD, SAM and ESAM with m-sharpness.

Paper: one run each, 90 epochs, batch 512, m = 128. CPU scale: ResNet-14 and ResNet-20 on 5,000 images of CIFAR-100.
"""

from __future__ import annotations

from esam.reproduce.item import Needs
from esam.reproduce.scale import Scale, Task

from .common import THREE, Printed, rows_of
from .tables import table_item

PAPER: dict[Task, dict[str, Printed]] = {
    ("ResNet-50", "ImageNet"): {
        "SGD": Printed(76.00, None, 1327),
        "SAM": Printed(76.70, None, 654, 100.0),
        "ESAM": Printed(77.05, None, 846, 129.3),
    },
    ("ResNet-101", "ImageNet"): {
        "SGD": Printed(77.80, None, 891),
        "SAM": Printed(78.60, None, 438, 100.0),
        "ESAM": Printed(79.09, None, 564, 128.7),
    },
}


def needs(scale: Scale) -> Needs:
    """Return the runs of both networks."""
    return Needs(rows=tuple(row for task, one in scale.imagenet.items() for row in rows_of(task, one, THREE)))


ITEM = table_item(
    "table2",
    "Table 2",
    "ImageNet by SGD, SAM and ESAM, m-sharpness",
    heading="Accuracy and training speed on ImageNet",
    needs=needs,
    paper=PAPER,
    notes=(
        "The paper takes its accuracies of SGD and SAM from another paper. At the CPU scale ResNet-14 and ResNet-20 on "
        "a part of CIFAR-100 stand for ResNet-50 and ResNet-101 on ImageNet, with m = 32 in batches of 128.",
    ),
)
