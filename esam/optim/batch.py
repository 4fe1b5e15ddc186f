"""What is a batch made of, and what may a closure return?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from .randomness import RandomState, random_state, replayed

Keep = slice | Tensor
Closure = Callable[[Keep], Tensor]

EVERYTHING = slice(None)


@dataclass
class Piece:
    """Samples behind one closure: all of them, or a stretch; knows how to run them, and to run them again."""

    closure: Closure
    devices: frozenset[torch.device] = frozenset()
    size: int | None = None
    stretch: tuple[int, int] | None = None
    random: RandomState = field(default_factory=list)

    def first_losses(self, *, graph_expected: bool = True) -> Tensor:
        """Run the samples and return a loss for each; remember the random state that they met."""
        self.random = random_state(self.devices)
        losses = checked_losses(self.closure(self._of_closure(None)), self.size, graph_expected=graph_expected)
        self.size = len(losses)
        return losses

    def losses_again(self, keep: Tensor | None = None) -> Tensor:
        """Run all samples, or those at ``keep``, with the random numbers of the first pass."""
        with replayed(self.random):
            losses = self.closure(self._of_closure(keep))
        return checked_losses(losses, self.count(keep))

    def count(self, keep: Tensor | None) -> int:
        """Return how many samples ``losses_again(keep)`` runs."""
        assert self.size is not None, "the first pass comes first"
        return self.size if keep is None else len(keep)

    def _of_closure(self, keep: Tensor | None) -> Keep:
        if self.stretch is None:
            return EVERYTHING if keep is None else keep
        return torch.arange(*self.stretch) if keep is None else keep + self.stretch[0]


def measured_size(closure: Closure, devices: frozenset[torch.device]) -> int:
    """Return how many samples stand behind a closure; costs a forward pass, leaves the random stream where it was."""
    with torch.no_grad(), replayed(random_state(devices)):
        return len(checked_losses(closure(EVERYTHING), None))


def checked_closures(closure: Closure | Sequence[Closure] | None) -> list[Closure]:
    """Return the closures of the micro-batches, or say what ``step`` wants."""
    closures: list[object] = list(closure) if isinstance(closure, (list, tuple)) else [closure]
    if not closures:
        raise ValueError("step got an empty list of closures; pass one closure for each micro-batch of the batch")
    for c in closures:
        if not callable(c):
            raise ValueError(
                f"step needs a closure, got {type(c).__name__}; pass a function of the samples to keep, such as "
                'lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none")'
            )
    return cast(list[Closure], closures)


def checked_losses(losses: object, expected: int | None, *, graph_expected: bool = True) -> Tensor:
    """Return the closure's losses, ``expected`` of them if that is known, or say what is wrong with them."""
    if not isinstance(losses, Tensor):
        raise ValueError(
            f"the closure returned {type(losses).__name__}; return a tensor of losses, one a sample, graph attached"
        )
    if losses.dim() == 0:
        raise ValueError(
            "the closure returned a scalar; the step weighs and ranks samples, so return one loss per sample "
            '(reduction="none")'
        )
    if losses.dim() != 1:
        raise ValueError(
            f"the closure returned losses of shape {tuple(losses.shape)}; return one loss per sample, shape (batch,): "
            "average over the other dimensions, for example losses.flatten(1).mean(1)"
        )
    if len(losses) == 0:
        raise ValueError("the closure returned no losses: the batch is empty; skip empty batches")
    if not losses.is_floating_point():
        raise ValueError(f"the closure returned losses of type {losses.dtype}; return floating-point losses")
    if graph_expected and torch.is_grad_enabled() and not losses.requires_grad:
        raise ValueError(
            "the closure returned losses without a graph; compute them from the model, without detach() or no_grad(), "
            "and check that some parameter requires a gradient"
        )
    if expected is not None and len(losses) != expected:
        raise ValueError(
            f"the closure returned {len(losses)} losses for {expected} samples; index inputs and targets by its "
            "argument, as in model(x[keep]), y[keep]"
        )
    return losses


def cut_into_groups(pieces: list[Piece], sizes: list[int], m: int) -> list[list[Piece]]:
    """Cut the batch into groups of ``m`` consecutive samples; the last one may be smaller."""
    groups: list[list[Piece]] = []
    room = 0
    for piece, size in zip(pieces, sizes, strict=True):
        start = 0
        while start < size:
            if room == 0:
                groups.append([])
                room = m
            stop = min(size, start + room)
            whole = stop - start == size
            groups[-1].append(Piece(piece.closure, piece.devices, stop - start, None if whole else (start, stop)))
            room -= stop - start
            start = stop
    return groups


def shared_out(keep: Tensor, pieces: list[Piece]) -> list[tuple[Piece, Tensor | None]]:
    """Return the pieces that hold kept samples, each with its own, counted from the piece's start."""
    if len(pieces) == 1:
        return [(pieces[0], keep)]
    shares: list[tuple[Piece, Tensor | None]] = []
    start = 0
    for piece in pieces:
        stop = start + piece.count(None)
        inside = keep[(keep >= start) & (keep < stop)] - start
        if len(inside):
            shares.append((piece, inside))
        start = stop
    return shares
