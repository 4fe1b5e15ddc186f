"""Table of A.6: ViT-S/16 on ImageNet by SGD, SAM, ESAM-SWP, ESAM-SDS and ESAM.

"ESAM-SWP achieves much better accuracy than SAM (80.88 % v.s. 80.34 %)". The row "SGD" does not tell its base
optimizer; ours is AdamW. On a CPU, a small ViT on 1,000 pictures of 20 of ImageNet's classes.
"""

from __future__ import annotations

from functools import partial

from .results import Claim, at_least, more_accurate, speed_claim
from .tables import PaperTable, draw_table, make_tables, printed

NUMBER, TITLE = "Table of A.6", "ViT-S/16 on ImageNet"
VIT = ("ViT-S/16", "ImageNet")
PAPER: PaperTable = {VIT: printed((79.72, 1133), (80.34, 581), (80.88, 616), (79.97, 693), (80.46, 734))}


tables = partial(make_tables, "Table of A.6, 20 classes of ImageNet, 16 x 16", PAPER)
draw = partial(draw_table, "vit", "Table of A.6, 20 classes of ImageNet, 16 x 16", PAPER)
CLAIMS = (
    Claim("SAM is more accurate than the base", "80.34 and 79.72", more_accurate([VIT], "sam", "base")),
    Claim("SWP is more accurate than SAM", "80.88 and 80.34", more_accurate([VIT], "esam-swp", "sam")),
    Claim("ESAM is at least as accurate as SAM", "80.46 and 80.34", at_least([VIT], "esam", "sam")),
    Claim("SDS is less accurate than SAM", "79.97 and 80.34", more_accurate([VIT], "sam", "esam-sds")),
    Claim("ESAM's speed", "126.3 % of SAM's", speed_claim([VIT], "esam", 1.263)),
    Claim("SWP's speed", "106.0 % of SAM's", speed_claim([VIT], "esam-swp", 1.06)),
    Claim("SDS's speed", "119.3 % of SAM's", speed_claim([VIT], "esam-sds", 1.193)),
)
