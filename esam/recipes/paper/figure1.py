"""The first figure: training speed against accuracy of SGD, SAM and ESAM, as bars. Drawn from Table 1's runs.

Paper: PyramidNet-110 on CIFAR-100. Here ResNet-18 on both CIFARs too, with ESAM's default form beside the paper's.
"""

from __future__ import annotations

from pathlib import Path

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Values
from esam.reproduce.scale import Scale, words
from esam.reproduce.store import Found

from . import table1
from .common import THREE, accuracy_sheet, printed_json, rows_of, slug
from .timing import table_values

PAPERS_TASK = ("PyramidNet-110", "CIFAR-100")


def needs(scale: Scale) -> Needs:
    """Return Table 1's runs of the paper's task, and of those where ESAM's default form has a row."""
    tasks = [task for task in scale.cifar if task == PAPERS_TASK or task in scale.defaults]
    rows = [row for task in tasks for row in rows_of(task, scale.cifar[task], THREE, default=task in scale.defaults)]
    return Needs(rows=tuple(rows))


def analyse(found: Found) -> Values:
    """Return accuracy and speed by task and method."""
    return table_values(found)


def sheets(measured: Values) -> list[Sheet]:
    """Return the numbers behind the bars."""
    return [accuracy_sheet("Training speed against accuracy", measured, ITEM.paper)]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw speed and accuracy side by side, one figure for each task."""
    from esam.analysis.plot import Bar, bars

    written = []
    for task, methods in measured["tasks"].items():
        title = measured["titles"][task]
        panels = {
            label: {name.replace(" ", "\n"): Bar(own[key]["mean"], own[key]["std"]) for name, own in methods.items()}
            for label, key in (("training speed, images/s", "images_per_second"), ("test accuracy, %", "accuracy"))
        }
        formats = {"training speed, images/s": ",.0f", "test accuracy, %": ".1f"}
        written += bars(path.with_name(f"{path.name}-{slug(task)}"), panels, title=title, formats=formats)
    return written


ITEM = Item(
    name="figure1",
    number="Figure 1",
    title="Training speed against accuracy",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper=printed_json(table1.PAPER),
    notes=(f"The paper draws {words(PAPERS_TASK)}; all of it comes from Table 1's runs.",),
)
