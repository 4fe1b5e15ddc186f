"""How large is the experiment? The same items at the paper's size, and at one that two CPU cores manage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from esam.compare.plan import Comparison

Task = tuple[str, str]
"""A column of the paper's tables in its own words, such as ("ResNet-18", "CIFAR-10")."""


@dataclass(frozen=True)
class Grid:
    """A landscape: points a side, pairs of directions to average, how far it reaches, over how many images."""

    points: int
    groups: int
    reach: float
    images: int


@dataclass(frozen=True)
class Look:
    """How a run is looked into while it trains: after which epochs, and on what."""

    every: int
    """After the first epoch, after every so many, and after the last."""
    batches: int
    batch_size: int
    gamma: float
    rho: float
    """For a run that leaves its own to the default."""
    betas: tuple[float, ...]
    """SWP's beta, for the linearity of the loss along its perturbation."""
    draws: int
    """Masks drawn for each beta and batch."""
    ts: tuple[float, ...]
    """Where on the line from theta (0) through theta + eps (1) the losses of B+ and B- are taken."""
    mean_draws: int
    """Masks whose perturbations are averaged, to hold the mean against SAM's eps."""

    def epochs(self, last: int) -> list[int]:
        """Return the epochs after which the run is looked into."""
        return [epoch for epoch in range(1, last + 1) if epoch in (1, last) or epoch % self.every == 0]


@dataclass(frozen=True)
class Savings:
    """The MLPs on which SWP's savings are timed."""

    serial: tuple[int, ...]
    crossed: tuple[int, ...]
    betas: tuple[float, ...]
    width: int
    batch: int
    draws: int


@dataclass(frozen=True)
class Search:
    """The grid that tunes each method separately."""

    start: Comparison
    lrs: tuple[float, ...]
    weight_decays: tuple[float, ...]
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True)
class Scale:
    """One size of all the experiments."""

    name: str
    machine: Literal["GPU", "CPU"]
    cifar: Mapping[Task, Comparison]
    imagenet: Mapping[Task, Comparison]
    vit: Mapping[Task, Comparison]
    defaults: tuple[Task, ...]
    """Where ESAM as this package has it by default gets a row beside the paper's form."""
    study: tuple[Task, ...]
    study_seeds: tuple[int, ...]
    study_shares: tuple[float, ...]
    """Values of beta and of gamma."""
    observed: tuple[Task, ...]
    look: Look
    landscape: tuple[Task, Comparison]
    random_plane: Grid
    adversarial: tuple[Task, Comparison]
    adversarial_plane: Grid
    vectors: int
    """Random vectors behind the Hessian's trace."""
    savings: Savings
    search: Search
    rounds: int
    """Steps of each method when they are timed in turn."""


def words(task: Task) -> str:
    """Say a task as a table's heading does: "ResNet-18, CIFAR-10"."""
    return ", ".join(task)
