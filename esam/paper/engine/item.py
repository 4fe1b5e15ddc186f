"""What is an item: a table or figure of the paper that can be made again?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from esam.compare.plan import Comparison, configured
from esam.report.sheets import Sheet
from esam.train.config import Config
from esam.train.runs import title

from .scale import ExperimentScale, PaperTask, Probe

if TYPE_CHECKING:
    from .inputs import Inputs

MODEL_NAMES = {
    "wrn10-1": "WRN-10-1",
    "wrn28-10": "WRN-28-10",
    "vit-tiny": "ViT-tiny",
    "vit-s16": "ViT-S/16",
    **{f"resnet{depth}": f"ResNet-{depth}" for depth in (8, 14, 18, 20, 50, 101)},
    **{f"pyramidnet{depth}": f"PyramidNet-{depth}" for depth in (8, 110)},
}
DATA_NAMES = {"uoft-cs/cifar10": "CIFAR-10", "uoft-cs/cifar100": "CIFAR-100", "ILSVRC/imagenet-1k": "ImageNet"}
Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Workload:
    """A model on a data set: the paper's, and the one that was trained for it."""

    paper_model: str
    paper_data: str
    model: str
    data: str

    @property
    def paper(self) -> str:
        """The paper's column: "ResNet-18, CIFAR-10"."""
        return f"{self.paper_model}, {self.paper_data}"

    @property
    def as_run(self) -> str:
        """What was trained: "ResNet-8, CIFAR-10"."""
        return f"{self.model}, {self.data}"

    @property
    def title(self) -> str:
        """Both: "ResNet-8 for ResNet-18, CIFAR-10" where a smaller model stands for the paper's."""
        return self.titled(" ")

    def titled(self, gap: str) -> str:
        """Return the title with another gap before its second part."""
        if self.as_run == self.paper:
            return self.paper
        return f"{self.model if self.data == self.paper_data else self.as_run}{gap}for {self.paper}"


@dataclass(frozen=True)
class MethodRuns:
    """A method on a workload, over its seeds."""

    workload: Workload
    method: str
    label: str
    """The method as people read it: "ESAM"."""
    configs: tuple[Config, ...]
    """One a seed."""
    share: float | None = None
    """SWP's beta or SDS's gamma, where the paper studies it."""


@dataclass(frozen=True)
class Needs:
    """What an item is made from at one scale."""

    runs: tuple[MethodRuns, ...] = ()
    """Their records."""
    weights: tuple[MethodRuns, ...] = ()
    """Their trained weights too."""
    probed: tuple[MethodRuns, ...] = ()
    """Runs that are probed while they train."""
    probe: Probe | None = None
    passes: tuple[tuple[Config, float], ...] = ()
    """Forward passes of single images that the analysis takes, by the model that takes them."""
    thread_flops: float = 0.0
    """Other operations of the analysis, which one CPU thread does at any scale."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """What else a plan should say."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to make it from: the scale has nothing that stands for the paper's task."""
        return not (self.every or self.thread_flops)

    @property
    def every(self) -> tuple[MethodRuns, ...]:
        """All the runs, in whatever way they are needed."""
        return (*self.probed, *self.weights, *self.runs)


@dataclass(frozen=True)
class Item(Generic[Measured]):
    """A table or figure: what it needs, how it is worked out, shown and drawn."""

    name: str
    number: str
    """Where it stands in the paper."""
    title: str
    kind: type[Measured]
    """Of its measured values: a frozen dataclass."""
    needs: Callable[[ExperimentScale], Needs]
    analyse: Callable[[Inputs], Measured]
    sheets: Callable[[Measured], Sequence[Sheet]]
    draw: Callable[[Measured, Path], list[Path]]
    """(measured values, path without an ending) -> the files written."""
    notes: tuple[str, ...] = ()
    """What a reader must know to compare."""


def runs_of(task: PaperTask, comparison: Comparison, methods: Sequence[str]) -> tuple[MethodRuns, ...]:
    """Return the runs of each method on the workload that stands for the paper's."""
    config = comparison.config
    model, data = MODEL_NAMES.get(config.model, config.model), DATA_NAMES.get(config.data, config.data)
    seeds = {method: [configured(comparison, method, seed) for seed in comparison.seeds] for method in methods}
    return tuple(
        MethodRuns(Workload(*task, model, data), method, title(configs[0]), tuple(configs))
        for method, configs in seeds.items()
    )


def with_changes(comparison: Comparison, **changes: Any) -> Comparison:
    """Return a comparison whose common configuration is another in some fields."""
    return dataclasses.replace(comparison, config=dataclasses.replace(comparison.config, **changes))
