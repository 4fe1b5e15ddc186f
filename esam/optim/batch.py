"""What does a method's ``finish`` work on? The samples that share one perturbation, and their gradient at theta."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .buffers import has_batch_statistics
from .gradients import NONE, Gradients
from .perturb import PassNeeded, Radii
from .pieces import UNCOUNTED, Pass, Piece, reduced
from .selection import Candidates

if TYPE_CHECKING:
    from .flow import Step

Run = tuple[Piece, Tensor | None]
"""A piece, and those of its samples to run; None: all."""


class Batch:
    """The samples that share one perturbation: their gradient at theta, and how to run them again.

    ``finish`` of a method works on it; weights are theta, or theta + eps inside ``with self.at(eps)``.
    """

    def __init__(self, step: Step, radii: Radii, superset: Batch | None = None) -> None:
        self._step, self._superset = step, superset
        self._subset: Batch | None = None
        self.radii = radii
        """The radius of each tensor to perturb, by its index."""
        self.first = NONE
        """The gradient of the mean loss at theta, until ``backward``; a tensor that no pass reached is missing."""
        self.samples = 0
        """How many samples have run at theta."""
        self.last = True
        """Whether no other batch follows in this step: with ``m``, there may be several."""
        self.pieces: list[Piece] = []
        self.share = 1.0
        """What this batch's gradient counts for in the step's: less than 1 where there are several."""
        self.log: list[Any] | None = None
        """Results of the passes that the caller's loop has run for ``finish``, which is called again for each."""
        self.replayed = 0

    # For methods ----------------------------------------------------------------------------------------------------

    @property
    def subset(self) -> Batch:
        """The samples that ran separately, where the plan asked for some; else all of them."""
        return self._subset or self

    def add(self, gradients: Gradients) -> None:
        """Add to the gradient that the base steps by."""
        root = self._root
        if root.log is not None:
            root.replayed += 1
            if root.replayed <= len(root.log):
                return
            root.log.append(None)
        self._step.grad.add(gradients, root.share)

    def backward(self, keep: Callable[[Candidates], Tensor] | None = None) -> None:
        """Add the gradient of these samples, at the weights as they are, to that which the base steps by.

        Args:
            keep: Chooses the samples to run, by index; None: all of them.
        """
        step, root = self._step, self._root
        runs: list[Run] = [(piece, None) for piece in self.pieces] if keep is None else self._kept(keep)
        count = sum(piece.count(samples) for piece, samples in runs)
        if root.log is None:
            root.first = root.subset.first = NONE  # the passes need the memory
        for number, (piece, samples) in enumerate(runs, start=1):
            part = (root.samples if step.loss == "sum" else piece.count(samples)) / count
            self._run(piece, self._backward_by(part), keep=samples, sync=root.last and number == len(runs))
        if runs and root.last:
            step.grad.shared = True

    @property
    def gradient(self) -> Gradients:
        """What the base would step by now, unscaled."""
        gradients, scale = self._step.grad.now(), self._step.grad.scale
        return gradients if scale is None else gradients * (1 / scale)

    def mean_over_ranks(self, gradients: Gradients) -> Gradients:
        """Return the mean of what every rank has."""
        return self._step.ranks.mean(gradients, self._step.parameters)

    @property
    def sparse(self) -> set[int]:
        """The tensors whose gradients are sparse."""
        grads = enumerate(p.grad for p in self._step.parameters)
        return self._step.grad.sparse | {n for n, grad in grads if grad is not None and grad.is_sparse}

    # For the flow ---------------------------------------------------------------------------------------------------

    @property
    def _root(self) -> Batch:
        return self._superset or self

    def split(self) -> None:
        """Let a part of the samples have a gradient of its own."""
        self._subset = Batch(self._step, self.radii, self)

    def release(self) -> None:
        """Let go of samples and gradients, at once: a circle would wait for the garbage collector."""
        self.pieces, self.first, self._subset = [], NONE, None

    def add_first(self, piece: Piece, gradients: Gradients, *, again: bool) -> None:
        """Take the gradient of a piece at theta in; ``again``: the piece can be run once more."""
        self.samples += piece.size
        if self._step.loss == "sum":
            self.first = self.first + gradients
        else:
            self.first = self.first.averaged(gradients, piece.size / self.samples)
        if again:
            self.pieces.append(piece)

    def close(self) -> None:
        """Make ``first`` what the gradient of the whole batch would be in its place, unscaled."""
        if self._step.loss == "sum" and self.samples < self._root.samples:
            self.first = self.first * (self._root.samples / max(1, self.samples))
        if self._step.grad.scale is not None:
            self.first = self.first * (1 / self._step.grad.scale)

    def _backward_by(self, part: float) -> Callable[[Tensor], None]:
        def backward(losses: Tensor) -> None:
            step, factor = self._step, self._root.share * part
            step.grad.backward(reduced(losses, step.loss), factor if step.finite is None else factor * step.finite)

        return backward

    def _kept(self, keep: Callable[[Candidates], Tensor]) -> list[Run]:
        """Return the pieces that hold kept samples, each with its own."""
        if not all(piece.counted for piece in self.pieces):
            raise ValueError(UNCOUNTED)
        # every rank of a sharded model must run every piece, or the others wait for it: each selects for itself
        numbers = range(len(self.pieces))
        units = [[i] for i in numbers] if self._step.ranks.sharded else [list(numbers)]
        runs: list[Run] = []
        for unit in units:
            pieces = [self.pieces[i] for i in unit]
            chosen = keep(self._candidates(unit))
            self._step.optimizer.monitor.saw_kept(len(chosen), sum(piece.size for piece in pieces))
            runs += [(pieces[0], chosen)] if len(pieces) == 1 else self._by_piece(chosen, pieces)
        return runs

    def _by_piece(self, keep: Tensor, pieces: list[Piece]) -> list[Run]:
        """Cut indices into the joined pieces into each piece's own; how many fall to each must be read back."""
        least = 2 if has_batch_statistics(self._step.optimizer.model) else 1
        runs: list[Run] = []
        start = 0
        for piece in pieces:
            count = piece.size
            inside = keep[(keep >= start) & (keep < start + count)] - start
            if 0 < len(inside) < least <= count:  # BatchNorm cannot normalise by one
                begin = min(int(inside[0]), count - least)
                inside = torch.arange(begin, begin + least, device=keep.device)
            if len(inside):
                runs.append((piece, inside))
            start += count
        return runs

    def _candidates(self, numbers: list[int]) -> Candidates:
        pieces, step = [self.pieces[i] for i in numbers], self._step
        sign = -1 if all(group.get("maximize") for group in step.optimizer.param_groups) else 1

        def perturbed_losses() -> Tensor:
            again: list[Tensor] = []
            for piece in pieces:
                self._run(piece, again.append, graph=False, result=again)
            return sign * torch.cat(again)

        losses = sign * torch.cat([piece.losses for piece in pieces])
        return Candidates(losses, perturbed_losses, step.sample_generator)

    def _run(
        self, piece: Piece, accept: Callable[[Tensor], None], *, result: list[Tensor] | None = None, **how: Any
    ) -> None:
        """Run a pass; in ``passes``, read it from the log, or leave ``finish`` until the caller's loop has run it."""
        log = self._root.log
        if log is None:
            Pass(self._step, piece, accept, **how)()
            return
        if self._root.replayed < len(log):
            if result is not None:
                result.append(log[self._root.replayed])
            self._root.replayed += 1
            return

        def logged(losses: Tensor) -> None:
            accept(losses)
            log.append(losses.detach())

        raise PassNeeded(Pass(self._step, piece, logged, **how))
