"""Table 1 with each method at its own best: learning rate, weight decay and rho from searches of equal size.

Not in the paper, which tunes on the test accuracy. CPU scale: ResNet-8 on CIFAR-10 with the best points of grid-search.
"""

from __future__ import annotations

from .table1 import PAPER
from .tables import THREE, table_item

ITEM = table_item(
    "own-best",
    "Beside Table 1",
    "SGD, SAM and ESAM, each at its own best",
    heading="Accuracy and training speed, each method tuned",
    paper=PAPER,
    methods=lambda *_: THREE,
    comparisons=lambda scale: scale.tuned,
    notes=(
        "Learning rate, weight decay and rho of each method are the best of its own search in grid-search: as many "
        "points for each, judged on held-out training images, one seed.",
    ),
)
