"""How large are the experiments? What a scale consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from esam.compare.plan import Comparison

PaperTask = tuple[str, str]
"""A column of the paper's tables in its own words, such as ("ResNet-18", "CIFAR-10")."""


@dataclass(frozen=True)
class PlaneSize:
    """A landscape: points a side, pairs of directions to average, how far it reaches, over how many images."""

    points: int
    groups: int
    reach: float
    images: int


@dataclass(frozen=True)
class Probe:
    """How a run is probed while it trains: after which epochs, and on what."""

    every: int
    """After the first epoch, after every so many, and after the last."""
    batches: int
    batch_size: int
    gamma: float = 0.5
    rho: float = 0.05
    """For a run that leaves its own to the default."""
    betas: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    """SWP's beta, for the linearity of the loss along its perturbation."""
    draws: int = 3
    """Masks drawn for each beta and batch."""
    ts: tuple[float, ...] = (-0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    """Where on the line from theta (0) through theta + eps (1) the losses of B+ and B- are taken."""
    mean_draws: int = 200
    """Masks whose perturbations are averaged, to compare the mean with SAM's eps."""

    def epochs(self, last: int) -> list[int]:
        """Return the epochs after which the run is probed."""
        return [epoch for epoch in range(1, last + 1) if epoch in (1, last) or epoch % self.every == 0]


@dataclass(frozen=True)
class ToyMLPs:
    """The MLPs on which SWP's savings are timed."""

    width: int
    draws: int
    batch: int = 128
    serial: tuple[int, ...] = (50, 75, 100, 125)
    crossed: tuple[int, ...] = (25, 50, 65, 75)
    betas: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class SearchGrid:
    """The grid that tunes each method separately; where rho is searched too, as many points for every method."""

    start: Comparison
    lrs: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2)
    weight_decays: tuple[float, ...] = (5e-4, 1e-3)
    batch_sizes: tuple[int, ...] = (64, 128, 256)
    rhos: tuple[float, ...] = ()
    """Where two are given, methods with a radius search half of the grid with them: as many points as without."""


@dataclass(frozen=True)
class LengthStudy:
    """How does the gap to SAM depend on the length of training, and on what of SDS?"""

    task: PaperTask
    epochs: tuple[int, ...]
    """Of SGD, SAM and ESAM."""
    sds_epochs: tuple[int, ...]
    """Of SDS alone."""
    variant_epochs: tuple[int, ...]
    """Of what is changed in ESAM: gamma, the length of its steps, the ranking."""
    gammas: tuple[float, ...] = (0.7, 0.9)
    """Beside the paper's .5."""


@dataclass(frozen=True)
class ExperimentScale:
    """One size of all the experiments."""

    name: str
    machine: Literal["GPU", "CPU"]
    comparisons: Mapping[PaperTask, Comparison]
    """What is trained for each column of the paper's tables."""
    beside: tuple[str, ...]
    """Methods that the paper does not have, beside its own in ResNet-18's columns of Table 1."""
    ablation: tuple[PaperTask, ...]
    """Where SWP and SDS are trained alone."""
    study: tuple[PaperTask, ...]
    study_seeds: tuple[int, ...]
    study_shares: tuple[float, ...]
    """Values of beta and of gamma."""
    probe: Probe
    landscape: PaperTask
    random_plane: PlaneSize
    adversarial_plane: PlaneSize
    hessian_vectors: int
    """Random vectors behind the Hessian's trace."""
    toys: ToyMLPs
    search: SearchGrid
    tuned: Mapping[PaperTask, Comparison]
    """Each method with the values that its own search found best."""
    length: LengthStudy | None
    timed_rounds: int
    """Steps of each method when they are timed in turn."""
