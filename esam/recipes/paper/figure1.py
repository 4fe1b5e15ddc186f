"""The first figure: training speed against accuracy of SGD, SAM and ESAM, as bars. Drawn from Table 1's runs.

Paper: PyramidNet-110 on CIFAR-100. Here ResNet-18 on both CIFARs too, with ESAM's default form beside the paper's.
"""

from __future__ import annotations

from pathlib import Path

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Values
from esam.reproduce.scale import Scale, words

from . import table1
from .common import THREE, accuracy_bar, accuracy_sheet, printed_json, rows_of, short, short_colours, slug, speed_bar
from .timing import table_values

PAPERS_TASK = ("PyramidNet-110", "CIFAR-100")


def needs(scale: Scale) -> Needs:
    """Return Table 1's runs of the paper's task, and of those where ESAM's default form has a row."""
    tasks = [task for task in scale.cifar if task == PAPERS_TASK or task in scale.defaults]
    rows = [row for task in tasks for row in rows_of(task, scale.cifar[task], THREE, default=task in scale.defaults)]
    return Needs(rows=tuple(rows))


def sheets(measured: Values) -> list[Sheet]:
    """Return the numbers behind the bars."""
    return [accuracy_sheet("Training speed against accuracy", measured, ITEM.paper)]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw speed and accuracy side by side, one figure for each task."""
    from esam.analysis.plot import bars

    kinds = {"training speed, images/s": (speed_bar, ",.0f"), "test accuracy, %": (accuracy_bar, ".1f")}
    formats = {kind: number for kind, (_, number) in kinds.items()}
    written = []
    for task, methods in measured["tasks"].items():
        title = measured["titles"][task]
        panels = {
            kind: {short(label): bar(measured, task, label) for label in methods} for kind, (bar, _) in kinds.items()
        }
        written += bars(
            path.with_name(f"{path.name}-{slug(task)}"), panels, title=title, formats=formats, colours=short_colours()
        )
    return written


ITEM = Item(
    name="figure1",
    number="Figure 1",
    title="Training speed against accuracy",
    needs=needs,
    analyse=table_values,
    sheets=sheets,
    draw=draw,
    paper=printed_json(table1.PAPER),
    notes=(
        f"The paper draws {words(PAPERS_TASK)}, with 557 images/s for SGD where its Table 1 has 555; all of ours comes "
        "from Table 1's runs.",
    ),
)
