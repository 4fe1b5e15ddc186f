"""What is a batch made of, and what may a closure return?"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

Closure = Callable[[slice | Tensor], Tensor]
EVERYTHING = slice(None)
UNCOUNTED = (
    "the closure returned a scalar, so the size of the batch is not known; pass batch_size=len(x), or return one loss "
    'per sample (reduction="none")'
)


@dataclass
class Piece:
    """Samples behind one closure: all of them, or some; knows how to run them, and to run them again."""

    closure: Closure
    devices: frozenset[torch.device]
    """Accelerators whose random numbers later passes must see again."""
    size: int | None = None
    samples: Tensor | None = None
    """Which of the closure's samples these are; None: all."""
    one_loss_each: bool = False
    """Whether the closure must return a loss for each sample, not their mean."""
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    """Of each sample at theta, detached; a mean stands for each of its samples."""
    counted: bool = True
    """Whether it is known how many samples there are."""
    _random: list[Tensor] = field(default_factory=list)

    def remember_random_state(self) -> None:
        """Let later runs of these samples see the random numbers that come now."""
        self._random = [torch.get_rng_state(), *(torch.get_device_module(d).get_rng_state(d) for d in self.devices)]

    def first_losses(self) -> Tensor:
        """Run the samples and return what the closure does; remember the random state that they met."""
        self.remember_random_state()
        try:
            found = self._called(EVERYTHING if self.samples is None else self.samples)
        except IndexError as error:
            if self.samples is None:
                raise
            last = int(self.samples.max())
            raise ValueError(f"the closure has no sample {last} ({error}); batch_size, if given, is len(x)") from error
        losses = self._checked(found, self.size)
        self.counted = self.size is not None or losses.dim() > 0
        self.size = self.size or losses.numel()
        self.losses = losses.detach() if losses.dim() else losses.detach().expand(self.size)
        return losses

    def losses_again(self, keep: Tensor | None = None) -> Tensor:
        """Run all samples, or those at ``keep``, with the random numbers of the first pass."""
        samples = self.samples
        if keep is not None:
            samples = keep if samples is None else samples[keep.to(samples.device)]
        with self._replayed():
            losses = self.closure(EVERYTHING if samples is None else samples)
        return self._checked(losses, self.count(keep))

    def count(self, keep: Tensor | None) -> int:
        """Return how many samples ``losses_again(keep)`` runs."""
        assert self.size is not None, "the first pass comes first"
        return self.size if keep is None else len(keep)

    def measured_size(self) -> int:
        """Return how many samples stand behind the closure; costs a forward pass, moves no random stream."""
        self.remember_random_state()
        with without_graph(), self._replayed():
            losses = checked_losses(self._called(EVERYTHING), None)
        if losses.dim() == 0:
            raise ValueError(UNCOUNTED)
        return len(losses)

    def _called(self, samples: slice | Tensor) -> object:
        """Call the closure for the first time, or say that it is one of another kind."""
        try:
            return self.closure(samples)
        except TypeError as error:
            if _takes_samples(self.closure):
                raise
            raise ValueError(
                "the closure takes no samples to keep; pass a function of them, such as lambda keep: "
                'F.cross_entropy(model(x[keep]), y[keep], reduction="none"); a trainer that calls step with a closure '
                "of its own wants an adapter: Trainer(callbacks=[esam.integrations.lightning.SharpnessAware()])"
            ) from error

    @contextmanager
    def _replayed(self) -> Iterator[None]:
        """Draw the random numbers of the first pass again (dropout masks), then go on where the stream was."""
        kinds = {d.type for d in self.devices} or {"cuda"}
        assert len(kinds) == 1, "a model is on the CPU and on accelerators of one kind"
        with torch.random.fork_rng([d.index or 0 for d in self.devices], device_type=kinds.pop()):
            torch.set_rng_state(self._random[0])
            for device, state in zip(self.devices, self._random[1:], strict=True):
                torch.get_device_module(device).set_rng_state(state, device)
            yield

    def _checked(self, losses: object, expected: int | None) -> Tensor:
        losses = checked_losses(losses, expected)
        if losses.dim() == 0 and self.one_loss_each:
            raise ValueError(
                "the closure returned a scalar; this method ranks samples, so return one loss per sample "
                '(reduction="none")'
            )
        if torch.is_grad_enabled() and not losses.requires_grad:
            raise ValueError(
                "the closure returned losses without a graph; compute them from the model, without detach() or "
                "no_grad(), and check that some parameter requires a gradient"
            )
        return losses


@contextmanager
def without_graph() -> Iterator[None]:
    """Run closures for their values only."""
    try:
        with torch.no_grad():
            yield
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        raise ValueError(
            "the closure takes gradients itself, and while samples are ranked or counted it runs without a graph; put "
            "the part of it that takes them under torch.enable_grad()"
        ) from error


def _takes_samples(closure: Closure) -> bool:
    """Tell whether a closure can be called with one argument; where that cannot be known, it can."""
    try:
        inspect.signature(closure).bind(EVERYTHING)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def mean_of(losses: Tensor) -> Tensor:
    """Return the mean of what a closure returned."""
    return losses.mean() if losses.dim() else losses


def checked_closures(closure: Closure | Sequence[Closure]) -> list[Closure]:
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
    given: list[Any] = list(batch_size) if isinstance(batch_size, (list, tuple)) else [batch_size]
    sizes = [operator.index(n) if hasattr(n, "__index__") else 0 for n in given]
    if len(sizes) != closures or min(sizes) < 1:
        raise ValueError(f"batch_size must give one whole number >= 1 for each of {closures} closures, got {given}")
    return list(sizes)


def checked_losses(losses: object, expected: int | None) -> Tensor:
    """Return what a closure returned, ``expected`` losses if that is known, or say what is wrong with it."""
    if not isinstance(losses, Tensor):
        raise ValueError(
            f"the closure returned {type(losses).__name__}; return a tensor of losses, one a sample, graph attached"
        )
    if losses.dim() > 1:
        raise ValueError(
            f"the closure returned losses of shape {tuple(losses.shape)}; return one loss per sample, shape (batch,): "
            "average over the other dimensions, for example losses.flatten(1).mean(1)"
        )
    if losses.numel() == 0:
        raise ValueError("the closure returned no losses: the batch is empty; skip empty batches")
    if not losses.is_floating_point():
        raise ValueError(f"the closure returned losses of type {losses.dtype}; return floating-point losses")
    if losses.dim() and expected is not None and len(losses) != expected:
        raise ValueError(
            f"the closure returned {len(losses)} losses for {expected} samples; index inputs and targets by its "
            "argument, as in model(x[keep]), y[keep]; batch_size, if given, is len(x)"
        )
    return losses


def split_by_piece(
    keep: Tensor, pieces: list[Piece], weights: Tensor | None = None, *, least: int = 1
) -> list[tuple[Piece, Tensor, Tensor | None]]:
    """Return the pieces that hold kept samples, each with its own, counted from the piece's start, and their weights.

    A piece that runs at all runs at least ``least`` samples, if it has them: a lone one takes its neighbours along,
    which count for nothing where there are weights.
    """
    whole = None
    if weights is not None:
        size = sum(piece.count(None) for piece in pieces)
        whole = torch.zeros(size, dtype=weights.dtype, device=keep.device).index_put((keep,), weights.to(keep.device))
    shares: list[tuple[Piece, Tensor, Tensor | None]] = []
    start = 0
    for piece in pieces:
        inside = keep[(keep >= start) & (keep < start + piece.count(None))] - start
        if 0 < len(inside) < least <= piece.count(None):
            first = min(int(inside[0]), piece.count(None) - least)
            inside = torch.arange(first, first + least, device=keep.device)
        if len(inside):
            shares.append((piece, inside, None if whole is None else whole[start + inside]))
        start += piece.count(None)
    return shares
