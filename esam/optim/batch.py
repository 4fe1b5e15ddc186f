"""What is a batch made of, and what may a closure return?"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

Keep = slice | Tensor
Closure = Callable[[Keep], Tensor]
EVERYTHING = slice(None)


@dataclass
class Piece:
    """Samples behind one closure: all of them, or some; knows how to run them, and to run them again."""

    closure: Closure
    devices: frozenset[torch.device]
    """Accelerators whose random numbers later passes must see again."""
    size: int | None = None
    samples: Tensor | None = None
    """Which of the closure's samples these are; None: all."""
    scalar_allowed: bool = True
    random: list[Tensor] = field(default_factory=list)

    def first_losses(self) -> Tensor:
        """Run the samples and return a loss for each; remember the random state that they met."""
        self.random = [torch.get_rng_state(), *(torch.get_device_module(d).get_rng_state(d) for d in self.devices)]
        losses = self._checked(self.closure(EVERYTHING if self.samples is None else self.samples), self.size)
        self.size = len(losses)
        return losses

    def losses_again(self, keep: Tensor | None = None) -> Tensor:
        """Run all samples, or those at ``keep``, with the random numbers of the first pass."""
        chosen: Keep = EVERYTHING if keep is None and self.samples is None else self.of_closure(keep)
        with self._replayed():
            losses = self.closure(chosen)
        return self._checked(losses, self.count(keep))

    def of_closure(self, keep: Tensor | None) -> Tensor:
        """Return the indices by which the closure knows the samples at ``keep``."""
        if self.samples is None or keep is None:
            return cast(Tensor, self.samples if keep is None else keep)
        return self.samples[keep.to(self.samples.device)]

    def count(self, keep: Tensor | None) -> int:
        """Return how many samples ``losses_again(keep)`` runs."""
        assert self.size is not None, "the first pass comes first"
        return self.size if keep is None else len(keep)

    def measured_size(self) -> int:
        """Return how many samples stand behind the closure; costs a forward pass, moves no random stream."""
        self.random = [torch.get_rng_state(), *(torch.get_device_module(d).get_rng_state(d) for d in self.devices)]
        with torch.no_grad(), self._replayed():
            losses = self.closure(EVERYTHING)
            if isinstance(losses, Tensor) and losses.dim() == 0:
                raise ValueError(
                    "the closure returned a scalar, so the size of the batch is not known; pass batch_size=len(x), or "
                    'return one loss per sample (reduction="none")'
                )
            return len(checked_losses(losses, None))

    @contextmanager
    def _replayed(self) -> Iterator[None]:
        """Draw the random numbers of the first pass again (dropout masks), then go on where the stream was."""
        kinds = {d.type for d in self.devices}
        assert len(kinds) <= 1, "a model is on the CPU and on accelerators of one kind"
        where = {"devices": [d.index or 0 for d in self.devices], "device_type": kinds.pop() if kinds else "cuda"}
        with torch.random.fork_rng(**where):
            torch.set_rng_state(self.random[0])
            for device, state in zip(self.devices, self.random[1:], strict=True):
                torch.get_device_module(device).set_rng_state(state, device)
            yield

    def _checked(self, losses: object, expected: int | None) -> Tensor:
        if isinstance(losses, Tensor) and losses.dim() == 0 and self.scalar_allowed:
            losses = losses.expand(1 if expected is None else expected)  # a mean stands for each of its samples
        return checked_losses(losses, expected)


def checked_closures(closure: Closure | Sequence[Closure] | None) -> list[Closure]:
    """Return the closures of the micro-batches, or say what is wanted."""
    closures: list[object] = list(closure) if isinstance(closure, (list, tuple)) else [closure]
    if not closures:
        raise ValueError("step got an empty list of closures; pass one closure for each micro-batch of the batch")
    for c in closures:
        if not callable(c):
            raise ValueError(
                f"a closure is wanted, got {type(c).__name__}; pass a function of the samples to keep, such as "
                'lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none")'
            )
    return cast(list[Closure], closures)


def checked_sizes(batch_size: int | Sequence[int] | None, closures: int) -> list[int | None]:
    """Return the size of each closure's batch, None where it is not given."""
    if batch_size is None:
        return [None] * closures
    sizes = [operator.index(n) for n in (batch_size if isinstance(batch_size, Sequence) else [batch_size])]
    if len(sizes) != closures or min(sizes) < 1:
        raise ValueError(f"batch_size must give one number >= 1 for each of {closures} closures, got {sizes}")
    return list(sizes)


def checked_losses(losses: object, expected: int | None) -> Tensor:
    """Return the closure's losses, ``expected`` of them if that is known, or say what is wrong with them."""
    if not isinstance(losses, Tensor):
        raise ValueError(
            f"the closure returned {type(losses).__name__}; return a tensor of losses, one a sample, graph attached"
        )
    if losses.dim() == 0:
        raise ValueError(
            'the closure returned a scalar; this method ranks samples, so return one loss per sample (reduction="none")'
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
    if torch.is_grad_enabled() and not losses.requires_grad:
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


def split_by_piece(keep: Tensor, pieces: list[Piece]) -> list[tuple[Piece, Tensor | None]]:
    """Return the pieces that hold kept samples, each with its own, counted from the piece's start."""
    if len(pieces) == 1:
        return [(pieces[0], keep)] if len(keep) else []
    shares: list[tuple[Piece, Tensor | None]] = []
    start = 0
    for piece in pieces:
        stop = start + piece.count(None)
        inside = keep[(keep >= start) & (keep < stop)] - start
        if len(inside):
            shares.append((piece, inside))
        start = stop
    return shares
