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

from .batch import Batch
from .buffers import SavedBuffers, has_batch_statistics
from .closures import Bindings
from .distributed import backward_into
from .gradients import Gradients
from .perturb import PassNeeded, Radii, perturbed
from .pieces import UNCOUNTED, Pass, Piece, random_state, reduced, set_random_state
from .selection import HeadRecorder, drawn_subset

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
    head: bool = False
    """Whether a ranking reads what the last linear layer saw."""
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
        # how gradients are made
        self.scaler, self._backward = scaler, backward
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self.scale: Tensor | None = None if scaler is None else scaler.scale(torch.ones((), device=device))
        self.finite: Tensor | None = None
        """With a scaler: 1, or NaN where the first gradient overflowed, so that the step is skipped on every rank."""
        self.wanted: list[int] = []
        """The tensors that the first pass differentiates, by index."""
        self.sparse: set[int] = set()
        """Those of them whose gradients are sparse."""
        # what there is so far
        self.batch: Batch | None = None
        """The samples that are perturbed together; None: the step is the base's own."""
        self.plain: Batch | None = None
        """Micro-batches that are not perturbed (``perturb=False``)."""
        self.losses: list[tuple[Tensor, int]] = []
        self.unit, self.samples = 0, 0
        """Samples of the first and of all means that ``.grad`` holds; it is in units of the first."""
        self.seen, self.taken = 0, 0
        """Samples of the micro-batches so far, and of those in the subset."""
        self.shared = not self.ranks.replicated
        """Whether ``.grad`` is the same on every rank."""
        self.buffers: SavedBuffers | None = None
        """The copy that shows the buffers as they are, if one does."""
        self.bindings: list[Bindings] = []
        self.in_turns, self.in_finish, self.ready = False, False, False
        """Whether the caller's loop runs the passes, whether ``finish`` is running, whether ``.grad`` is final."""
        self._noted: tuple[Tensor, Tensor] | None = None
        self._samples: torch.Generator | None = None

    def begin(self) -> None:
        """Save what an error takes back, and ask the method what the step needs."""
        optimizer = self.optimizer
        for p in self.parameters:
            p.grad = None
        optimizer._before.save(optimizer.model)
        self.buffers, optimizer._step = optimizer._before, self
        self.radii = optimizer.radii()
        self.plan = plan = optimizer.plan() if self.radii or optimizer.rho is None else None
        if plan is None or plan.at is not None or plan.plain:
            return
        self.radii = self.radii if plan.tensors is None else plan.tensors
        everything = plan.tensors is None or _needs_whole_backward(optimizer.model)
        self.wanted = self._trainable() if everything else list(plan.tensors)  # type: ignore[arg-type]
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
        elif batch is None:
            with nullcontext() if plan is None or plan.at is None else self.optimizer.at(plan.at):
                yield self._directly(piece, sync=last and self.ranks.replicated and self.plain is None)
        elif self.loss == "whole" or (plan.subset is None and self.optimizer.m is None):  # type: ignore[union-attr]
            yield self._first(piece, [batch, batch.subset])
        elif not piece.counted or not piece.size:
            raise ValueError(UNCOUNTED)
        elif plan.subset is None:  # type: ignore[union-attr]
            yield from self._in_groups(piece)
        else:
            yield from self._in_parts(piece, batch, plan)  # type: ignore[arg-type]

    def _in_parts(self, piece: Piece, batch: Batch, plan: Plan) -> Iterator[Pass]:
        """Run a micro-batch in two parts: the subset first, then the rest."""
        size, rest, subset = piece.size, plan.rest, batch.subset
        count = self._subset_count(size, plan.subset or 1.0)
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
            self.backward(loss, self._weight(count, last=sync))
            self.shared = self.shared or sync

        return Pass(self, piece, accept, first=True, sync=sync, quiet=False)

    def _first(self, piece: Piece, batches: Sequence[Batch], *, again: bool = True, quiet: bool = False) -> Pass:
        """Return the pass that takes a piece's gradient at theta into these batches; ``.grad`` is not touched.

        Nothing is computed for tensors that are not wanted, and backward stops at the earliest that is.
        """
        recorder = None
        if self.plan is not None and self.plan.head and again:
            recorder = batches[0].recorder = batches[0].recorder or HeadRecorder(self.optimizer.model)
        plain = batches[0] is self.plain
        index = self._trainable() if plain else self.wanted

        def accept(losses: Tensor) -> None:
            loss, inputs = reduced(losses, self.loss), [self.parameters[n] for n in index]
            if not plain:
                self.losses.append((loss.detach(), piece.size))
            if recorder is not None:
                inputs.append(recorder.take_output(len(losses)))
            found = self._gradients(loss, inputs)
            if recorder is not None:
                each = 1 if self.loss == "sum" else len(losses)
                recorder.give_gradient(found.pop(), each if self.scale is None else each / self.scale)
            gradients = self.ranks.named(index, found, self.sparse)
            if not plain and self.plan is not None and self.plan.tensors is not None:
                gradients = gradients.only(self.plan.tensors)
            for batch in dict.fromkeys(batches):
                batch.add_first(piece, gradients, again=again)

        return Pass(self, piece, accept, first=True, quiet=quiet, recorder=recorder)

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
        if self.scale is not None:
            norm = (batch.first if batch.first else subset.first).norm()
            self.finite = torch.where(norm.isfinite(), 1.0, torch.nan)
        if not self.ranks.own_eps:
            batch.first = self.ranks.mean(batch.first, self.parameters)
            if subset is not batch:
                subset.first = self.ranks.mean(subset.first, self.parameters)
        batch.share = self._weight(batch.samples, last=last)

    def _finish_directly(self) -> None:
        """Make ``.grad`` the gradient of the mean over all pieces."""
        if not self.shared or not self.ranks.replicated:
            if self.loss != "sum" and self.unit != self.samples:
                self._scale_gradient(self.unit / self.samples)
            if self.plain is not None:
                self.plain.add(self.plain.first)
        if self.plan is not None and self.plan.plain:
            self._share_gradient()
            self.optimizer.finish(Batch(self, self.radii))

    def conclude(self) -> Tensor:
        """Make ``.grad`` final; return the loss of all samples at theta: their mean, or their sum."""
        self._share_gradient()
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
        total = sum(count for _, count in self.losses)
        parts = [loss if self.loss == "sum" else loss * (count / total) for loss, count in self.losses]
        return torch.stack(parts).sum()

    def undo(self) -> None:
        """Take the whole step back: weights, buffers, gradients, random numbers, and what the method remembered."""
        optimizer = self.optimizer
        if self.moved is not None:
            self.moved.restore()
        if self.running is not None:
            self.running.leave()
        for p in self.parameters:
            p.grad = None
        optimizer._before.put_back()
        optimizer.generator.set_state(self.generator)
        set_random_state(self.random)
        optimizer.recall(self.memory)

    # Gradients ------------------------------------------------------------------------------------------------------

    def _gradients(self, loss: Tensor, inputs: Sequence[Any]) -> list[Tensor | None]:
        """Return the gradients of a first pass; ``.grad`` is not touched."""
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        if self._backward is None:
            return self.ranks.gradients(scaled, inputs)
        backward = self._backward
        return backward_into(lambda: backward(scaled), self.parameters, inputs)

    def backward(self, loss: Tensor, factor: float | Tensor) -> None:
        """Add ``factor`` times the gradient to ``.grad``."""
        if isinstance(factor, Tensor) or factor != 1:
            loss = loss * factor
        loss = loss if self.scaler is None else self.scaler.scale(loss)
        if self._backward is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._backward(loss)

    def gradient(self) -> Gradients:
        """Return what ``.grad`` holds."""
        index = [n for n, p in enumerate(self.parameters) if p.grad is not None]
        tensors = self.ranks.local([self.parameters[n].grad for n in index])
        found = self.ranks.named(index, tensors)
        return found.like(found.index, found.tensors, shared=self.shared)

    def add(self, gradients: Gradients, share: float) -> None:
        """Add gradients to ``.grad``, which is scaled."""
        ranks, factor = self.ranks, share if self.scale is None else self.scale * share
        if isinstance(factor, Tensor) or factor != 1 or not gradients.fresh:
            gradients = gradients * factor  # new memory: that of a first gradient may be another's too
        self.shared = self.shared and gradients.shared
        for n, g in gradients:
            p = self.parameters[n]
            if n in self.sparse and not ranks.sharded:
                g = g.to_sparse(1)  # its base wants it so
            if p.grad is None and not ranks.sharded:
                p.grad = g
            elif p.grad is None:
                p.grad = torch.empty_like(p)
                ranks.local([p.grad])[0].copy_(g)
            elif g.is_sparse:
                p.grad = p.grad + g
            else:
                ranks.local([p.grad])[0].add_(g)
        if gradients.index:
            self._noted = (p, p.grad)  # type: ignore[assignment]

    def refuse_cleared_gradient(self) -> None:
        """Refuse a loss function that clears ``.grad`` while it holds a part of the step's gradient."""
        if self._noted is not None and self._noted[0].grad is not self._noted[1]:
            raise ValueError(
                "the loss function has cleared or replaced .grad, which holds a part of this step's gradient; "
                "leave zero_grad() out of it"
            )

    def note_gradient(self) -> None:
        """Know the tensor that a backward pass may have put in the place of ``.grad``."""
        if self._noted is not None and self._noted[0].grad is not None:
            self._noted = (self._noted[0], self._noted[0].grad)

    def _weight(self, count: int, *, last: bool) -> float:
        """Return what the mean over ``count`` more samples counts for in ``.grad``.

        The last of them makes it the mean of all, before it is exchanged: ranks may differ in size.
        """
        if self.loss == "sum":
            return 1.0
        self.unit, self.samples = self.unit or count, self.samples + count
        if not last:
            return count / self.unit
        if self.samples != count:
            self._scale_gradient(self.unit / self.samples)
        return count / self.samples

    def _scale_gradient(self, factor: float) -> None:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if gradients and factor != 1:
            torch._foreach_mul_(self.ranks.local(gradients), factor)

    def _share_gradient(self) -> None:
        """Make ``.grad`` the mean over the ranks, where no backward has."""
        if not self.shared:
            for n, mean in self.ranks.mean(self.gradient(), self.parameters):
                self.parameters[n].grad = mean
            self.shared = True

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
            self.optimizer._between.save(self.optimizer.model)
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
