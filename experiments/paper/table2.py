"""Table 2: ImageNet by SGD, SAM and ESAM with m-sharpness (m = 128 of 512).

"ESAM outperforms SAM by 0.35 % to 0.49 % in accuracy and enjoys 28.7 % faster training speed." The paper takes its
accuracies of SGD and SAM from another paper. On a CPU, ResNet-14 and ResNet-20 on 1,000 pictures of 20 of ImageNet's
classes stand for ResNet-50 and ResNet-101, m = 32 of 128.
"""

from __future__ import annotations

from functools import partial

from .results import Claim, at_least, more_accurate, speed_claim
from .tables import PaperTable, draw_table, make_tables, printed

NUMBER, TITLE = "Table 2", "ImageNet by SGD, SAM and ESAM, m-sharpness"
PAPER: PaperTable = {
    ("ResNet-50", "ImageNet"): printed((76.00, 1327), (76.70, 654), (77.05, 846)),
    ("ResNet-101", "ImageNet"): printed((77.80, 891), (78.60, 438), (79.09, 564)),
}
COLUMNS = tuple(PAPER)


tables = partial(make_tables, "Table 2, 20 classes of ImageNet, 16 x 16", PAPER)
draw = partial(draw_table, "table2", "Table 2, 20 classes of ImageNet, 16 x 16", PAPER)
CLAIMS = (
    Claim("SAM is more accurate than SGD", "+0.7 and +0.8", more_accurate(COLUMNS, "sam", "base")),
    Claim("ESAM is more accurate than SGD", "+1.05 and +1.29", more_accurate(COLUMNS, "esam", "base")),
    Claim("ESAM is at least as accurate as SAM", "+0.35 and +0.49", at_least(COLUMNS, "esam", "sam")),
    Claim("ESAM's speed", "128.7 and 129.3 % of SAM's", speed_claim(COLUMNS, "esam", 1.287)),
)
