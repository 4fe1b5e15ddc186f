"""How does a running step flow: which passes does it take, what becomes of their gradients, how is it taken back?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from .accumulator import Accumulator
from .arguments import Bindings
from .batch import Batch
from .buffers import Owner, SavedBuffers, buffer_owners, has_batch_statistics
from .gradients import Gradients
from .perturb import PassNeeded, Radii, perturbed
from .pieces import UNCOUNTED, Pass, Piece, random_state, reduced, set_random_state
from .selection import drawn_subset

if TYPE_CHECKING:
    from .step import SharpnessAware


@dataclass(frozen=True)
class Plan:
    """What a step needs."""

    tensors: Radii | None = None
    """The tensors to differentiate and to perturb, each with its radius; None: all, with their groups' radii."""
    subset: float | None = None
    """Share of each batch that runs separately, before the rest: its gradient is ``batch.subset.first``."""
    rest: bool = True
    """Whether the samples outside the subset run at theta."""
    plain: bool = False
    """The step is the base's own, and ``finish`` only adds to its gradient, ``batch.gradient``."""
    at: Gradients | None = None
    """An eps that needs no gradient: the only pass runs at theta + eps, and ``finish`` is not called."""


class Step:
    """A step that is running: its passes, and what an error takes back."""

    def __init__(
        self, optimizer: SharpnessAware, scaler: GradScaler | None, backward: Callable[[Tensor], Any] | None
    ) -> None:
        self.optimizer, self.ranks, self.loss = optimizer, optimizer.ranks, optimizer.loss
        self.parameters = optimizer.parameters()
        self.devices = list({p.device: None for p in self.parameters if not p.is_cpu})
        # what an error takes back
        self.random, self.generator = random_state(self.devices), optimizer.generator.get_state()
        self.memory = optimizer.memory()
        self.moved: perturbed | None = None
        self.running: Pass | None = None
        self.grad = Accumulator(self.parameters, self.ranks, self.loss, scaler, backward)
        self.finite: Tensor | None = None
        """With a scaler: 1, or NaN where the first gradient overflowed, so that the step is skipped on every rank."""
        self.wanted: list[int] = []
        """The tensors that the first pass differentiates, by index."""
        self.batch: Batch | None = None
        """The samples that are perturbed together; None: the step is the base's own."""
        self.plain: Batch | None = None
        """Micro-batches that are not perturbed (``perturb=False``)."""
        self.losses: list[tuple[Tensor, int]] = []
        self.seen, self.taken = 0, 0
        """Samples of the micro-batches so far, and of those in the subset."""
        self.owners: list[Owner] = []
        """The layers that have buffers."""
        self.buffers: SavedBuffers | None = None
        """The copy that shows the buffers as they are, if one does."""
        self.bindings: list[Bindings] = []
        self.in_turns, self.in_finish, self.ready = False, False, False
        """Whether the caller's loop runs the passes, whether ``finish`` is running, whether ``.grad`` is final."""
        self._samples: torch.Generator | None = None

    def begin(self) -> None:
        """Save what an error takes back, and ask the method what the step needs."""
        optimizer = self.optimizer
        optimizer.monitor.begins()
        self.owners = buffer_owners(optimizer.model)
        optimizer._before.save(self.owners)
        self.buffers, optimizer._step = optimizer._before, self
        self.radii: Radii = optimizer.radii()
        self.plan = plan = optimizer.plan() if self.radii or optimizer.rho is None else None
        if plan is None or plan.at is not None or plan.plain:
            return
        self.radii = self.radii if plan.tensors is None else plan.tensors
        everything = plan.tensors is None or _needs_whole_backward(optimizer.model)
        self.wanted = self._trainable() if everything else list(self.radii)
        self.batch = Batch(self, self.radii)
        if plan.subset is not None:
            self.batch.split()
            self.sample_generator()

    # The passes at theta --------------------------------------------------------------------------------------------

    def first_passes(self, piece: Piece, *, last: bool, perturb: bool = True) -> Iterator[Pass]:
        """Yield the passes of a micro-batch at theta; each has run when the next is asked for."""
        plan, batch = self.plan, self.batch
        if not perturb:
            self.plain = self.plain or Batch(self, {})
            yield self._first(piece, [self.plain], again=False)
        elif batch is None or plan is None:
            with nullcontext() if plan is None or plan.at is None else self.optimizer.at(plan.at):
                yield self._directly(piece, sync=last and self.ranks.replicated and self.plain is None)
        elif self.loss == "whole" or (plan.subset is None and self.optimizer.m is None):
            yield self._first(piece, [batch, batch.subset])
        elif not piece.counted or not piece.size:
            raise ValueError(UNCOUNTED)
        elif plan.subset is None:
            yield from self._in_groups(piece)
        else:
            yield from self._in_parts(piece, batch, plan.subset, rest=plan.rest)

    def _in_parts(self, piece: Piece, batch: Batch, share: float, *, rest: bool) -> Iterator[Pass]:
        """Run a micro-batch in two parts: the subset first, then the rest."""
        size, subset = piece.size, batch.subset
        count = self._subset_count(size, share)
        self.optimizer.monitor.saw_kept(count, size)
        if not rest:
            piece.remember_state(self.devices)
            batch.pieces.append(piece)
            batch.samples += size
        if count in (0, size):
            into = [batch] * rest + [subset] * (count > 0)
            if into:
                yield self._first(piece, into, again=count > 0)
            return
        chosen, others = drawn_subset(size, count, self.sample_generator())
        if not rest:
            yield self._first(piece.cut(chosen), [subset])
            return
        yield from self._tested(piece)
        few = count < size - count  # the smaller part must not update running statistics
        yield self._first(piece.cut(chosen), [batch, subset], quiet=few)
        yield self._first(piece.cut(others), [batch], again=False, quiet=not few)
        piece.release()

    def _subset_count(self, size: int, share: float) -> int:
        """Return how many samples of a micro-batch are in the subset: the share of all so far, so perhaps none."""
        self.seen += size
        # every rank of a sharded model must run as many passes
        count = max(round(share * self.seen) - self.taken, int(self.taken == 0 or self.ranks.sharded))
        count = min(count, size)
        if (count == 1 < size or size - count == 1) and self._has_batch_statistics():  # which one sample has not
            count = max(count, 2)
            count = size if size - count == 1 else count
        self.taken += count
        return count

    def _in_groups(self, piece: Piece) -> Iterator[Pass]:
        """Run a micro-batch in groups of m; a group is finished when the next starts, the last by ``gradient``."""
        size = piece.size
        starts = list(range(0, size, self.optimizer.m or 1))
        if len(starts) > 1 and size - starts[-1] == 1 and self._has_batch_statistics():
            starts.pop()  # one sample alone has no statistics: it joins its neighbours
        if len(starts) > 1:
            yield from self._tested(piece)
        for start, stop in zip(starts, [*starts[1:], size], strict=True):
            assert self.batch is not None
            if self.batch.samples:
                yield from self.finishing(last=False)
                self.batch = Batch(self, self.radii)
            part = piece if stop - start == size else piece.cut(torch.arange(start, stop, device="cpu"))
            yield self._first(part, [self.batch])

    def _tested(self, piece: Piece) -> Iterator[Pass]:
        """Once, run the whole micro-batch beside its parts: the monitor compares the losses."""
        optimizer = self.optimizer
        if optimizer._parts_tested or optimizer.needs_losses:
            return
        optimizer._parts_tested = True
        piece.remember_state(self.devices)

        def compare(losses: Tensor) -> None:
            optimizer.monitor.saw_whole(reduced(losses, self.loss), piece.size, self.losses)

        yield Pass(self, piece, compare, graph=False)

    def _directly(self, piece: Piece, *, sync: bool) -> Pass:
        """Return the pass that adds a piece's gradient to ``.grad``: the base's own."""

        def accept(losses: Tensor) -> None:
            loss, count = reduced(losses, self.loss), piece.size
            self.losses.append((loss.detach(), count))
            self.grad.backward(loss, self.grad.weight(count, last=sync))
            self.grad.shared = self.grad.shared or sync

        return Pass(self, piece, accept, first=True, again=False, sync=sync, quiet=False)

    def _first(self, piece: Piece, batches: Sequence[Batch], *, again: bool = True, quiet: bool = False) -> Pass:
        """Return the pass that takes a piece's gradient at theta into these batches; ``.grad`` is not touched.

        Nothing is computed for tensors that are not wanted, and backward stops at the earliest that is.
        """
        plain = batches[0] is self.plain
        index = self._trainable() if plain else self.wanted

        def accept(losses: Tensor) -> None:
            loss, inputs = reduced(losses, self.loss), [self.parameters[n] for n in index]
            if not plain:
                self.losses.append((loss.detach(), piece.size))
            gradients = self.ranks.named(index, self.grad.gradients(loss, inputs), self.grad.sparse)
            if not plain and self.plan is not None and self.plan.tensors is not None:
                gradients = gradients.only(self.plan.tensors)
            for batch in dict.fromkeys(batches):
                batch.add_first(piece, gradients, again=again)

        return Pass(self, piece, accept, first=True, again=again, quiet=quiet)

    # The passes of finish -------------------------------------------------------------------------------------------

    def finishing(self, *, last: bool) -> Iterator[Pass]:
        """Let the method put a batch's gradient together; yield its passes where the caller's loop runs them."""
        batch = self.batch
        if last and self.plain is not None:
            self.plain.close()
        if batch is None or (last and not batch.samples):
            self._finish_directly()
            return
        self._close(batch, last=last)
        if last and self.plain is not None:
            self.plain.add(self.plain.first)
        self.in_finish = True
        if self.in_turns:
            yield from self._finish_in_turns(batch)
        else:
            self.optimizer.finish(batch)
        self.in_finish = False
        if self.buffers is not None:
            self.buffers.put_back()

    def _finish_in_turns(self, batch: Batch) -> Iterator[Pass]:
        """Call ``finish`` again for each of its passes, which gets one pass further: the caller's loop runs them."""
        optimizer = self.optimizer
        batch.log, memory, generator = [], optimizer.memory(), optimizer.generator.get_state()
        batch.first.fresh = batch.subset.first.fresh = False  # each call reads them anew
        samples = None if self._samples is None else self._samples.get_state()
        while True:
            batch.replayed = 0
            try:
                optimizer.finish(batch)
                return
            except PassNeeded as needed:
                run: Pass = needed.args[0]
            yield run
            if self.moved is not None:
                self.moved.restore()
            optimizer.recall(memory)
            optimizer.generator.set_state(generator)
            if samples is None:
                self._samples = None
            elif self._samples is not None:
                self._samples.set_state(samples)

    def _close(self, batch: Batch, *, last: bool) -> None:
        """Make a batch's first gradients those of means, and say what the batch counts for in the step."""
        batch.last, subset = last, batch.subset
        batch.close()
        if subset is not batch:
            subset.close()
        if not batch.first and not subset.first and (self.plan is None or self.plan.tensors is None):
            raise ValueError("the first pass reached none of the optimizer's parameters; are they the model's?")
        if self.grad.scale is not None:
            norm = (batch.first if batch.first else subset.first).norm()
            self.finite = torch.where(norm.isfinite(), 1.0, torch.nan)
        if not self.ranks.own_eps:
            batch.first = self.ranks.mean(batch.first, self.parameters)
            if subset is not batch:
                subset.first = self.ranks.mean(subset.first, self.parameters)
        batch.share = self.grad.weight(batch.samples, last=last)

    def _finish_directly(self) -> None:
        """Make ``.grad`` the gradient of the mean over all pieces."""
        if not self.grad.shared or not self.ranks.replicated:
            self.grad.take_mean()
            if self.plain is not None:
                self.plain.add(self.plain.first)
        if self.plan is not None and self.plan.plain:
            self.grad.share()
            self.optimizer.finish(Batch(self, self.radii))

    def conclude(self) -> Tensor:
        """Make ``.grad`` final; return the loss of all samples at theta: their mean, or their sum."""
        self.grad.share()
        if all(p.grad is None for p in self.parameters):
            raise ValueError(
                "no parameter has a gradient after the passes; hooks that step inside backward "
                "(register_post_accumulate_grad_hook) cannot be combined with a second pass: leave them out"
            )
        self.ranks.share_buffers()
        if self.batch is not None:
            self.batch.release()
        self.batch, self.plain, self.running, self.moved, self.bindings = None, None, None, None, []
        self.ready = True
        if len(self.losses) == 1:
            return self.losses[0][0]
        (total, seen), *others = self.losses
        for loss, count in others:
            seen += count
            total = total + loss if self.loss == "sum" else torch.lerp(total, loss.to(total), count / seen)
        return total

    def leave(self) -> None:
        """Be at theta again, and outside of any pass: the caller's loop may have ended in the middle of one."""
        mode = torch.is_grad_enabled()
        if self.moved is not None:
            self.moved.restore()
        if self.running is not None:
            self.running.leave()
        torch._C._set_grad_enabled(mode)

    def undo(self) -> None:
        """Take the whole step back: weights, buffers, gradients, random numbers, and what the method remembered."""
        optimizer = self.optimizer
        self.leave()
        for p in self.parameters:
            p.grad = None
        optimizer._before.put_back()
        optimizer.generator.set_state(self.generator)
        set_random_state(self.random)
        optimizer.recall(self.memory)

    # What else passes need ------------------------------------------------------------------------------------------

    def sample_generator(self) -> torch.Generator:
        """Return what draws samples, on each rank its own; masks come from the optimizer's, alike on every rank."""
        if self._samples is None:
            # the state of the optimizer's generator moves by one draw, whatever is drawn from this one
            self._samples = torch.Generator().manual_seed(_drawn_seed(self.optimizer.generator) + self.ranks.rank)
        return self._samples

    def keep_buffers(self, undo: list[Callable[[], Any]]) -> None:
        """Let a pass move no buffer; after those of ``finish`` they are put back once."""
        if self.buffers is None:
            self.optimizer._between.save(self.owners)
            self.buffers = self.optimizer._between
        if not self.in_finish:
            undo.append(self.buffers.put_back)

    def _trainable(self) -> list[int]:
        return [n for n, p in enumerate(self.parameters) if p.requires_grad]

    def _has_batch_statistics(self) -> bool:
        return has_batch_statistics(self.optimizer.model)


def _needs_whole_backward(model: nn.Module) -> bool:
    """Tell whether some tensors cannot be differentiated alone.

    On the CPU and in channels_last, the backward of GroupNorm crashes the process (torch 2.13) when the gradient of its
    weight or bias is wanted and that of its input is not.
    """
    return any(isinstance(layer, nn.GroupNorm) for layer in model.modules())


def _drawn_seed(generator: torch.Generator) -> int:
    """Draw a number on the host, also where a mode makes fake tensors of all others."""
    with nullcontext() if _get_current_dispatch_mode() is None else _disable_current_modes():
        return int(torch.randint(2**62, (), generator=generator, device="cpu"))
