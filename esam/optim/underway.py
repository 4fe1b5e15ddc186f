"""What does a step under way hand on from phase to phase?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .ascent import Eps
from .batch import Piece
from .buffers import Buffers
from .combine import MeanGradient
from .parallel import Gradients
from .ranking import HeadWatch


@dataclass(frozen=True)
class Targets:
    """Tensors that a pass differentiates, side by side with what each needs."""

    weights: list[Tensor]
    rho: list[float]
    """Radii; negative where the base maximises: the worst point nearby then lies downhill."""
    index: list[int]
    """Each tensor's place among all the optimizer's parameters: a key that outlives a restart."""
    left_out: tuple[int, ...] = ()
    """Places of the tensors that could have been perturbed but were not drawn."""

    def __len__(self) -> int:
        return len(self.weights)

    def only(self, picks: Sequence[int]) -> Targets:
        """Return the targets at these positions, in this order; the others are left out."""
        picked = set(picks)
        out = tuple(n for i, n in enumerate(self.index) if i not in picked)
        weights, rho = [self.weights[i] for i in picks], [self.rho[i] for i in picks]
        return Targets(weights, rho, [self.index[i] for i in picks], self.left_out + out)


@dataclass(frozen=True)
class Role:
    """What a piece of a batch that runs at theta is there for."""

    counted: bool = True
    """Its gradient is a part of the batch's."""
    apart: bool = False
    """Its gradient gives eps."""
    second: bool = True
    """It runs at theta + eps too."""
    moves_buffers: bool = True


@dataclass(frozen=True)
class Kept:
    """Samples of a piece that take the second pass: all, some, or some with weights that sum over the batch."""

    piece: Piece
    samples: Tensor | None = None
    weights: Tensor | None = None

    @property
    def count(self) -> int:
        """How many they are."""
        return self.piece.count(self.samples)


@dataclass
class Group:
    """Samples that share one perturbation, as far as their first pass has come."""

    pieces: list[Piece] = field(default_factory=list)
    """What has run at theta, and makes up the batch."""
    second: list[Piece] = field(default_factory=list)
    """What is to run at theta + eps."""
    batch: MeanGradient = field(default_factory=MeanGradient)
    part: MeanGradient = field(default_factory=MeanGradient)
    """Of the samples that run apart."""
    leaves: set[int] = field(default_factory=set)
    """What the losses depend on, by ``id``; filled where only some of it is differentiated."""
    watch: HeadWatch | None = None

    @property
    def size(self) -> int:
        """How many samples have run."""
        return sum(piece.count(None) for piece in self.pieces)


@dataclass
class Step:
    """A step under way, and what an error takes back."""

    parameters: list[Tensor]
    buffers: Buffers
    generator: Tensor
    memory: dict[str, Any]
    perturbs: bool = False
    drawn: Targets = field(default_factory=lambda: Targets([], [], []))
    """What is perturbed."""
    wanted: Targets = field(default_factory=lambda: Targets([], [], []))
    """What the first pass differentiates."""
    moved: tuple[list[Tensor], Eps] = field(default_factory=lambda: ([], Eps([], [])))
    """Weights that this step moves before its first pass, and by what."""
    samples: torch.Generator | None = None
    """Draws samples, on each rank its own; masks are drawn from the optimizer's generator, alike on every rank."""
    group: Group = field(default_factory=Group)
    closed: list[Group] = field(default_factory=list)
    """Groups whose second pass is done; ``.grad`` holds the sum, in units of the first one's size."""
    first: Gradients = field(default_factory=dict)
    """The whole first gradient, in the same units."""
    synchronised: bool = False
    """Whether the ranks have exchanged what ``.grad`` holds."""
    ready: bool = False
    """Whether ``.grad`` is final."""

    def mean_loss(self) -> Tensor:
        """Return the mean of all losses at theta."""
        return torch.cat([piece.losses for group in (*self.closed, self.group) for piece in group.pieces]).mean()
