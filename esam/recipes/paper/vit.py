"""The table of ViT-S/16 in the appendix: SGD, SAM, ESAM-SWP, ESAM-SDS and ESAM on ImageNet.

Paper: one run each, beta .5, gamma .7. CPU scale: ViT-tiny on 1,000 images of CIFAR-10, 4 epochs, one seed.
"""

from __future__ import annotations

from esam.reproduce.item import Needs
from esam.reproduce.scale import Scale, Task

from .common import FIVE, Printed, rows_of
from .tables import table_item

PAPER: dict[Task, dict[str, Printed]] = {
    ("ViT-S/16", "ImageNet"): {
        "SGD": Printed(79.72, None, 1133),
        "SAM": Printed(80.34, None, 581),
        "ESAM-SWP": Printed(80.88, None, 616),
        "ESAM-SDS": Printed(79.97, None, 693),
        "ESAM": Printed(80.46, None, 734),
    },
}


def needs(scale: Scale) -> Needs:
    """Return the runs of the transformer by five methods."""
    return Needs(rows=tuple(row for task, one in scale.vit.items() for row in rows_of(task, one, FIVE)))


ITEM = table_item(
    "vit",
    "Table of A.6",
    "ViT-S/16 on ImageNet",
    heading="Accuracy and training speed of a vision transformer",
    needs=needs,
    paper=PAPER,
    notes=(
        "The paper's row SGD does not tell its base optimizer, learning rate or weight decay; ours is AdamW. Steps are "
        "timed with SGD below every method. At the "
        "CPU scale ViT-tiny on a part of CIFAR-10 stands for ViT-S/16 on ImageNet.",
    ),
)
