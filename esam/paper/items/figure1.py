"""The first figure: training speed against accuracy of SGD, SAM and ESAM, as bars. Drawn from Table 1's runs.

Paper: PyramidNet-110 on CIFAR-100. Here ResNet-18 on both CIFARs too, with ESAM-random beside the paper's ESAM.
"""

from __future__ import annotations

from pathlib import Path

from esam.analysis.plot import bars

from ..engine.values import slug
from .table1 import PAPER, methods_on
from .tables import KINDS, RANDOM_TASKS, TableFigures, bar_colours, below_bar, spread_words, table_item

PAPERS_TASK = ("PyramidNet-110", "CIFAR-100")


def draw(measured: TableFigures, path: Path) -> list[Path]:
    """Draw speed and accuracy side by side, one figure for each workload."""
    kinds = (KINDS["speed"], KINDS["accuracy"])
    formats = {label: form for label, form, _ in kinds}
    written = []
    for one in measured.workloads:
        panels = {label: {below_bar(own): bar(own) for own in one.methods} for label, _, bar in kinds}
        where = path.with_name(f"{path.name}-{slug(one.workload.paper)}")
        title = f"{one.workload.title}; in brackets: the paper's\n{spread_words(measured)}"
        written += bars(where, panels, title=title, formats=formats, colours=bar_colours(measured))
    return written


ITEM = table_item(
    "figure1",
    "Figure 1",
    "Training speed against accuracy",
    heading="Training speed against accuracy",
    tasks=lambda _: (*RANDOM_TASKS, PAPERS_TASK),
    paper=PAPER,
    methods=methods_on,
    draw=draw,
    notes=(
        f"The paper draws {', '.join(PAPERS_TASK)}, with 557 images/s for SGD where its Table 1 has 555; all of ours "
        "comes from Table 1's runs.",
    ),
)
