"""Table 2: ImageNet, ResNet-50 and ResNet-101, by SGD, SAM and ESAM with m-sharpness.

Paper: one run each, 90 epochs, batch 512, m = 128. CPU scale: ResNet-14 and ResNet-20 on 5,000 images of CIFAR-100.
"""

from __future__ import annotations

from .tables import THREE, PaperTable, printed, table_item

PAPER: PaperTable = {
    ("ResNet-50", "ImageNet"): printed(THREE, (76.00, 1327), (76.70, 654, 100.0), (77.05, 846, 129.3)),
    ("ResNet-101", "ImageNet"): printed(THREE, (77.80, 891), (78.60, 438, 100.0), (79.09, 564, 128.7)),
}

ITEM = table_item(
    "table2",
    "Table 2",
    "ImageNet by SGD, SAM and ESAM, m-sharpness",
    heading="Accuracy and training speed on ImageNet",
    paper=PAPER,
    methods=lambda *_: THREE,
    notes=(
        "The paper takes its accuracies of SGD and SAM from another paper. At the CPU scale ResNet-14 and ResNet-20 on "
        "a part of CIFAR-100 stand for ResNet-50 and ResNet-101 on ImageNet, with m = 32 in batches of 128.",
    ),
)
