"""Table 2: ImageNet by SGD, SAM and ESAM with m-sharpness (m = 128 of 512).

"ESAM outperforms SAM by 0.35 % to 0.49 % in accuracy and enjoys 28.7 % faster training speed." The paper takes its
accuracies of SGD and SAM from another paper. On a CPU, ResNet-14 and ResNet-20 on 1,500 pictures of 20 of ImageNet's
classes stand for ResNet-50 and ResNet-101, m = 32 of 128.
"""

from __future__ import annotations

from collections.abc import Sequence

from .hyperparameters import THREE, Scale
from .jobs import Job, training
from .results import Claim, accuracy_claim, figure_of_a_gpu, speed_claim
from .speed import timings
from .tables import PaperTable, printed, table_item

NUMBER, TITLE = "Table 2", "ImageNet by SGD, SAM and ESAM, m-sharpness"
PAPER: PaperTable = {
    ("ResNet-50", "ImageNet"): printed(THREE, (76.00, 1327), (76.70, 654, 100.0), (77.05, 846, 129.3)),
    ("ResNet-101", "ImageNet"): printed(THREE, (77.80, 891), (78.60, 438, 100.0), (79.09, 564, 128.7)),
}
COLUMNS = tuple(PAPER)


def jobs(scale: Scale, seeds: Sequence[int]) -> list[Job]:
    """Return the runs of some seeds, and the timings."""
    runs = [training(scale, column, method, seed) for seed in seeds for column in COLUMNS for method in THREE]
    return [*runs, *(job for column in COLUMNS for job in timings(scale, column))]


tables, draw = table_item("table2", PAPER, "Table 2, 20 classes of ImageNet, 16 x 16")
CLAIMS = (
    Claim(
        "ImageNet: SAM is more accurate than SGD", "+0.7 and +0.8", accuracy_claim(COLUMNS, "sam", "base", better=True)
    ),
    Claim(
        "ImageNet: ESAM is more accurate than SGD",
        "+1.05 and +1.29",
        accuracy_claim(COLUMNS, "esam", "base", better=True),
    ),
    Claim("ImageNet: ESAM is at least as accurate as SAM", "+0.35 and +0.49", accuracy_claim(COLUMNS, "esam", "sam")),
    Claim(
        "ESAM's speed on ImageNet", "128.7 and 129.3 % of SAM's", figure_of_a_gpu(speed_claim(COLUMNS, "esam", 1.287))
    ),
)
