"""What is an item: a table or figure of the paper that can be made again?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esam.compare.plan import Comparison
from esam.report.sheets import Sheet
from esam.train.config import Config

from .scale import Look, Scale

if TYPE_CHECKING:
    from .store import Found

MODEL_NAMES = {
    "resnet8": "ResNet-8",
    "resnet14": "ResNet-14",
    "resnet18": "ResNet-18",
    "resnet20": "ResNet-20",
    "resnet50": "ResNet-50",
    "resnet101": "ResNet-101",
    "wrn10-1": "WRN-10-1",
    "wrn28-10": "WRN-28-10",
    "pyramidnet8": "PyramidNet-8",
    "pyramidnet110": "PyramidNet-110",
    "vit-tiny": "ViT-tiny",
    "vit-s16": "ViT-S/16",
}
DATA_NAMES = {"uoft-cs/cifar10": "CIFAR-10", "uoft-cs/cifar100": "CIFAR-100", "ILSVRC/imagenet-1k": "ImageNet"}
Values = dict[str, Any]
"""An item's results as plain JSON values."""


@dataclass(frozen=True)
class Row:
    """One line of a table: a method on a task, over its seeds."""

    task: str
    label: str
    """The method as people read it: "ESAM"."""
    comparison: Comparison
    """Of this method alone."""

    @property
    def title(self) -> str:
        """The task as it is run: "ResNet-8 for ResNet-18, CIFAR-10" where a smaller model stands for the paper's."""
        config = self.comparison.config
        model, data = MODEL_NAMES.get(config.model, config.model), DATA_NAMES.get(config.data, config.data)
        if self.task == f"{model}, {data}":
            return self.task
        return f"{model} for {self.task}" if self.task.endswith(f", {data}") else f"{model}, {data} for {self.task}"


@dataclass(frozen=True)
class Needs:
    """What an item is made from at one scale."""

    rows: tuple[Row, ...] = ()
    """Their records."""
    weights: tuple[Row, ...] = ()
    """Their trained weights too."""
    observed: tuple[Row, ...] = ()
    """Runs that are looked into while they train."""
    look: Look | None = None
    passes: tuple[tuple[Config, float], ...] = ()
    """Forward passes of single images that the analysis takes, by the model that takes them."""
    thread_flops: float = 0.0
    """Other operations of the analysis, which one CPU thread does at any scale."""
    sizes: dict[str, Any] = field(default_factory=dict)
    """What else a plan should say."""


@dataclass(frozen=True)
class Item:
    """A table or figure: what it needs, how it is worked out, shown and drawn."""

    name: str
    number: str
    """Where it stands in the paper."""
    title: str
    needs: Callable[[Scale], Needs]
    analyse: Callable[[Found], Values]
    sheets: Callable[[Values], Sequence[Sheet]]
    draw: Callable[[Values, Path], list[Path]]
    """(measured values, path without an ending) -> the files written."""
    paper: Values = field(default_factory=dict)
    """The paper's own numbers, as plain JSON values."""
    notes: tuple[str, ...] = ()
    """What a reader must know to compare."""
