"""What is a batch: the samples, how they are run, and run again, and what a loss function may return?"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .gradients import Gradients
from .indexing import EVERYTHING, Dims, joined, size_of_each, take_each
from .perturb import PassNeeded, Radii
from .selection import Candidates, HeadRecorder

if TYPE_CHECKING:
    from .step import SharpnessAware, Step

Closure = Callable[[slice | Tensor], Any]
"""Samples to keep, ``slice(None)`` or indices on the CPU -> their losses, or the mean of them."""
LossKind = Literal["mean", "sum", "whole"]
RandomState = list[tuple[torch.device, Tensor]]


class Piece:
    """Samples of one micro-batch, all or some of them: knows how to run them, and to run them again."""

    __slots__ = ("_arguments", "_autocast", "_dims", "_function", "_random", "counted", "losses", "outputs",
                 "samples", "size")  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...] | None,
        dims: Dims,
        size: int | None,
        samples: Tensor | None = None,
    ) -> None:
        self._function, self._arguments, self._dims = function, arguments, dims
        self.size = size
        """How many samples there are; None before the first pass where nobody has said."""
        self.counted = True
        """Whether that is known; a scalar loss of a batch without a size counts as one sample."""
        self.samples = samples
        """Which of the micro-batch's samples these are; None: all."""
        self.losses = torch.empty(0)
        """Of each sample at theta, detached; a mean stands for each of its samples."""
        self.outputs: Any = None
        """What the function returned beside the loss, detached."""
        self._random: RandomState = []
        self._autocast: list[tuple[str, torch.dtype]] = []

    def cut(self, samples: Tensor) -> Piece:
        """Return some of the samples."""
        arguments = self._arguments
        if arguments is not None:
            assert self.size is not None, "a batch that is cut has a size"
            arguments = take_each(arguments, samples, self._dims, self.size)
        return Piece(self._function, arguments, self._dims, len(samples), samples)

    def count(self, keep: Tensor | None) -> int:
        """Return how many samples ``run(keep)`` runs."""
        assert self.size is not None, "the first pass comes first"
        return self.size if keep is None else len(keep)

    def run(self, keep: Tensor | None) -> Any:
        """Call the function with all samples, or those of them at ``keep``."""
        if self._arguments is not None:
            return self._function(*self.arguments(keep))
        samples = self.samples
        if keep is not None:
            samples = keep if samples is None else samples[keep.to(samples.device)]
        return self._function(EVERYTHING if samples is None else samples.cpu())

    def arguments(self, keep: Tensor | None) -> tuple[Any, ...]:
        """Return what the function is called with."""
        assert self._arguments is not None, "a closure takes the samples to keep"
        if keep is None:
            return self._arguments
        return take_each(self._arguments, keep, self._dims, self.count(None))

    def remember_state(self, devices: Sequence[torch.device]) -> None:
        """Let later runs of these samples see the random numbers that come now, and the autocast of now."""
        self._random = random_state(devices)
        kinds = {"cpu", *(d.type for d in devices)}
        self._autocast = [(k, torch.get_autocast_dtype(k)) for k in kinds if torch.is_autocast_enabled(k)]

    def replay_state(self, undo: list[Callable[[], Any]]) -> None:
        """Bring the random numbers and the autocast of the first run back; add what ends that to ``undo``."""
        before = random_state([device for device, _ in self._random if device.type != "cpu"])
        undo.append(lambda: set_random_state(before))
        set_random_state(self._random)
        for kind, dtype in self._autocast:
            if not torch.is_autocast_enabled(kind):
                cast = torch.autocast(kind, dtype=dtype)
                cast.__enter__()  # type: ignore[no-untyped-call]
                undo.append(functools.partial(cast.__exit__, None, None, None))

    def takes_its_arguments(self) -> bool:
        """Tell whether the function can be called as ``run`` does; where that cannot be known, it can."""
        try:
            inspect.signature(self._function).bind(*(self._arguments or (EVERYTHING,)))
        except TypeError:
            return False
        except ValueError:
            pass
        return True

    def accept_first(self, result: Any, *, one_loss_each: bool) -> Tensor:
        """Return the losses that a first run returned, checked, and keep what later passes need of them."""
        loss, self.outputs = _loss_and_outputs(result)
        losses = checked_losses(loss, self.size, one_loss_each=one_loss_each)
        if self.size is None:
            self.size, self.counted = losses.numel(), losses.dim() > 0
        self.losses = losses.detach() if losses.dim() else losses.detach().expand(self.size)
        return losses

    def release(self) -> None:
        """Let go of the samples: they will not run again."""
        self._arguments = None


def random_state(devices: Sequence[torch.device]) -> RandomState:
    """Return the state of the CPU's random numbers, and of these accelerators'."""
    found = [(torch.device("cpu"), torch.get_rng_state())]
    return found + [(d, torch.get_device_module(d).get_rng_state(d)) for d in devices]


def set_random_state(state: RandomState) -> None:
    """Go on drawing from here."""
    for device, values in state:
        if device.type == "cpu":
            torch.set_rng_state(values)
        else:
            torch.get_device_module(device).set_rng_state(values, device)


class Pass:
    """One run of a piece: what is in force while it runs, and what becomes of its losses."""

    def __init__(
        self,
        flow: SharpnessAware,
        piece: Piece,
        accept: Callable[[Tensor], None],
        *,
        keep: Tensor | None = None,
        first: bool = False,
        sync: bool = False,
        quiet: bool = True,
        graph: bool = True,
        recorder: HeadRecorder | None = None,
    ) -> None:
        self.flow, self.piece, self.accept, self.keep = flow, piece, accept, keep
        self.first, self.sync, self.quiet, self.graph, self.recorder = first, sync, quiet, graph, recorder
        self._undo: list[Callable[[], Any]] = []

    def __call__(self) -> None:
        """Run it."""
        try:
            self.enter()
            self.take(self._called())
        finally:
            self.leave()

    def enter(self) -> None:
        """Bring what is in force while it runs into force."""
        flow, piece, undo = self.flow, self.piece, self._undo
        flow.enter_pass(self)
        if not self.sync and (no_sync := flow.ranks.no_sync()) is not None:
            undo.append(lambda: no_sync.__exit__(None, None, None))
            no_sync.__enter__()
        if self.recorder is not None:
            undo.append(self.recorder.attach().remove)
        if self.quiet:
            flow.save_buffers()
            if not flow.finishing:  # after which they are put back once
                undo.append(flow.put_buffers_back)
        else:
            undo.append(flow.buffers_moved)
        if self.first:
            piece.remember_state(flow.accelerators())
        else:
            piece.replay_state(undo)
        undo.append(_end_of_graph if self.graph else _end_without_graph)
        torch._C._set_grad_enabled(self.graph)

    def leave(self) -> None:
        """End all of that, in reverse; what an interrupt leaves is left to the next call."""
        while self._undo:
            self._undo[-1]()
            self._undo.pop()

    def take(self, result: Any) -> None:
        """Do with what the function returned whatever this pass is there for."""
        one_loss_each = self.flow.needs_losses
        if self.first:
            losses = self.piece.accept_first(result, one_loss_each=one_loss_each)
        else:
            found, expected = _loss_and_outputs(result)[0], self.piece.count(self.keep)
            losses = checked_losses(found, expected, one_loss_each=one_loss_each)
        if self.graph and not losses.requires_grad:
            raise ValueError(
                "the loss has no graph; compute it from the model, without detach() or no_grad(), and check that some "
                "parameter requires a gradient"
            )
        try:
            self.accept(losses)
        except RuntimeError as error:
            if "backward through the graph a second time" not in str(error):
                raise
            raise ValueError(
                "the graph of the loss is gone: the loss function calls backward() itself, or carries a tensor from "
                "one call to the next; return the loss and let the optimizer differentiate it, and detach() what is "
                "carried"
            ) from error

    def _called(self) -> Any:
        try:
            return self.piece.run(self.keep)
        except TypeError as error:
            if not self.first or self.piece.takes_its_arguments():
                raise
            raise ValueError(
                "the closure takes no samples to keep; hand the batch over, as in step(loss_of, x, y), or pass a "
                "function of the samples, such as lambda keep: F.cross_entropy(model(x[keep]), y[keep]); a trainer "
                "that calls step with a closure of its own wants an adapter, such as "
                "Trainer(callbacks=[esam.integrations.lightning.SharpnessAware()])"
            ) from error
        except RuntimeError as error:
            if self.graph or "does not require grad" not in str(error):
                raise
            raise ValueError(
                "the loss function takes gradients itself, and while samples are ranked it runs without a graph; put "
                "the part of it that takes them under torch.enable_grad()"
            ) from error


def _end_of_graph() -> None:
    torch._C._set_grad_enabled(False)


def _end_without_graph() -> None:
    torch.clear_autocast_cache()  # it would hand later passes weights without a graph


class Batch:
    """The samples that share one perturbation: their gradient at theta, and how to run them again.

    ``finish`` of a method works on it; weights are theta, or theta + eps inside ``with self.at(eps)``.
    """

    def __init__(self, flow: SharpnessAware, step: Step, radii: Radii, whole: Batch | None = None) -> None:
        self._flow, self._step, self._whole = flow, step, whole or self
        self.radii = radii
        """The radius of each tensor to perturb, by its index."""
        self.subset: Batch = self
        """The samples that ran separately, where the plan asked for some; else all of them."""
        self.pieces: list[Piece] = []
        self.recorder: HeadRecorder | None = None
        self.samples = 0
        """How many samples have run at theta."""
        self.share: float | Tensor = 1.0
        """What this batch's gradient counts for in the step's: less than 1 where there are several (``m``)."""
        self.last = True
        """Whether no other batch follows in this step."""
        self.first = Gradients()
        """The gradient of the mean loss at theta, until ``backward``; a tensor that no pass reached is missing."""
        self._unit = 0
        self.log: list[Any] | None = None
        self.replayed = 0

    # For methods ----------------------------------------------------------------------------------------------------

    def add(self, gradients: Gradients) -> None:
        """Add to the gradient that the base steps by."""
        self._once(lambda: self._add(gradients))

    def backward(self, keep: Callable[[Candidates], Tensor] | None = None) -> None:
        """Add the gradient of these samples, at the weights as they are, to that which the base steps by.

        Args:
            keep: Chooses the samples to run, by index; None: all of them.
        """
        runs: list[tuple[Piece, Tensor | None]] = [(piece, None) for piece in self.pieces]
        if keep is not None:
            runs = self._kept(keep)
        count = sum(piece.count(samples) for piece, samples in runs)
        if self._whole.log is None:
            self._whole.first = self._whole.subset.first = Gradients()  # the passes need the memory
        for number, (piece, samples) in enumerate(runs, start=1):
            part = piece.count(samples) / count if self._flow.loss != "sum" else self._whole.samples / count
            sync = self._whole.last and number == len(runs)
            self._run(piece, self._backward_by(part), keep=samples, sync=sync)
        if runs and self._whole.last:
            self._step.shared = True

    @property
    def gradient(self) -> Gradients:
        """What the base would step by now, unscaled."""
        grads = [p.grad for p in self._step.parameters]
        index = [n for n, g in enumerate(grads) if g is not None]
        found = self._flow.ranks.named(index, self._flow.ranks.local([grads[n] for n in index]))
        found = found if self._step.scale is None else found * (1 / self._step.scale)
        return found.like(found.index, found.tensors, shared=self._step.shared)

    def mean_over_ranks(self, gradients: Gradients) -> Gradients:
        """Return the mean of what every rank has."""
        return self._flow.ranks.mean(gradients, self._step.parameters)

    @property
    def sparse(self) -> set[int]:
        """The tensors whose gradients are sparse."""
        grads = enumerate(p.grad for p in self._step.parameters)
        return self._step.sparse | {n for n, grad in grads if grad is not None and grad.is_sparse}

    # For the flow ---------------------------------------------------------------------------------------------------

    def add_first(self, piece: Piece, gradients: Gradients, *, again: bool) -> None:
        """Take the gradient of a piece at theta in; ``again``: the piece can be run once more."""
        count = piece.count(None)
        self._unit = self._unit or count
        weight = 1.0 if self._flow.loss == "sum" else count / self._unit
        if self.first:
            self.first = self.first.plus(gradients, weight)
        else:
            self.first = gradients if weight == 1 else gradients * weight
        self.samples += count
        if again:
            self.pieces.append(piece)

    def close(self, inverse_scale: Tensor | None) -> None:
        """Make ``first`` the gradient of the mean over all samples, unscaled."""
        if not self.samples:
            return
        factor = self._whole.samples / self.samples if self._flow.loss == "sum" else self._unit / self.samples
        if inverse_scale is not None:
            self.first = self.first * (inverse_scale * factor)
        else:
            self.first = self.first.scale_(factor)

    def _add(self, gradients: Gradients) -> None:
        step, factor, ranks = self._step, self._whole.share, self._flow.ranks
        factor = factor if step.scale is None else step.scale * factor
        if isinstance(factor, Tensor) or factor != 1 or not gradients.fresh:
            gradients = gradients * factor  # new memory: that of a first gradient may be another's too
        step.shared = step.shared and gradients.shared
        for n, g in gradients:
            p = step.parameters[n]
            if n in step.sparse and not ranks.sharded:
                g = g.to_sparse(1)  # its base wants it so
            if p.grad is not None:
                p.grad = p.grad + g if g.is_sparse else p.grad
                if not g.is_sparse:
                    ranks.local([p.grad])[0].add_(g)
            elif ranks.sharded:
                p.grad = torch.empty_like(p)
                ranks.local([p.grad])[0].copy_(g)
            else:
                p.grad = g
            step.added = (p, p.grad)

    def _backward_by(self, part: float) -> Callable[[Tensor], None]:
        def backward(losses: Tensor) -> None:
            step, factor = self._step, self._whole.share
            factor = factor * part if step.finite is None else factor * part * step.finite
            if step.added is not None and step.added[0].grad is not step.added[1]:
                raise ValueError(
                    "the loss function has cleared or replaced .grad, which holds a part of this step's gradient; "
                    "leave zero_grad() out of it"
                )
            step.backward(reduced(losses, self._flow.loss), factor)
            if step.added is not None and step.added[0].grad is not None:
                step.added = (step.added[0], step.added[0].grad)

        return backward

    def _kept(self, keep: Callable[[Candidates], Tensor]) -> list[tuple[Piece, Tensor | None]]:
        """Return the pieces that hold kept samples, each with its own."""
        if not all(piece.counted for piece in self.pieces):
            raise ValueError(UNCOUNTED)
        # every rank of a sharded model must run every piece, or the others wait for it: each selects for itself
        numbers = range(len(self.pieces))
        units = [[i] for i in numbers] if self._flow.ranks.sharded else [list(numbers)]
        runs: list[tuple[Piece, Tensor | None]] = []
        for unit in units:
            pieces = [self.pieces[i] for i in unit]
            chosen = keep(self._candidates(unit))
            self._flow.monitor.saw_kept(len(chosen), sum(piece.count(None) for piece in pieces))
            runs += [(pieces[0], chosen)] if len(pieces) == 1 else self._by_piece(chosen, pieces)
        return runs

    def _by_piece(self, keep: Tensor, pieces: list[Piece]) -> list[tuple[Piece, Tensor | None]]:
        """Cut indices into the joined pieces into each piece's own; how many fall to each must be read back."""
        least = 2 if self._flow.has_batch_statistics() else 1
        runs: list[tuple[Piece, Tensor | None]] = []
        start = 0
        for piece in pieces:
            count = piece.count(None)
            inside = keep[(keep >= start) & (keep < start + count)] - start
            if 0 < len(inside) < least <= count:  # BatchNorm cannot normalise by one
                begin = min(int(inside[0]), count - least)
                inside = torch.arange(begin, begin + least, device=keep.device)
            if len(inside):
                runs.append((piece, inside))
            start += count
        return runs

    def _candidates(self, numbers: list[int]) -> Candidates:
        pieces, sign = [self.pieces[i] for i in numbers], self._flow.sign

        def perturbed_losses() -> Tensor:
            again: list[Tensor] = []
            for piece in pieces:
                self._run(piece, again.append, graph=False, result=again)
            return sign * torch.cat(again)

        head = None if self.recorder is None else self.recorder.head(numbers)
        losses = sign * torch.cat([piece.losses for piece in pieces])
        return Candidates(losses, perturbed_losses, lambda: self._step.sample_generator(self._flow), head)

    # Passes that the caller's own loop runs: finish is called again for each, and gets one pass further ---------------

    def _run(
        self, piece: Piece, accept: Callable[[Tensor], None], *, result: list[Tensor] | None = None, **how: Any
    ) -> None:
        log = self._whole.log
        if log is None:
            Pass(self._flow, piece, accept, **how)()
            return
        if self._whole.replayed < len(log):
            if result is not None:
                result.append(log[self._whole.replayed])
            self._whole.replayed += 1
            return

        def logged(losses: Tensor) -> None:
            accept(losses)
            log.append(losses.detach())

        raise PassNeeded(Pass(self._flow, piece, logged, **how))

    def _once(self, work: Callable[[], None]) -> None:
        log = self._whole.log
        if log is not None:
            self._whole.replayed += 1
            if self._whole.replayed <= len(log):
                return
            log.append(None)
        work()


def reduced(losses: Tensor, kind: LossKind) -> Tensor:
    """Return the scalar to differentiate."""
    if losses.dim() == 0:
        return losses
    return losses.sum() if kind == "sum" else losses.mean()


UNCOUNTED = (
    "parts of the batch are to run, and its size is not known; hand the batch over, as in step(loss_of, x, y), or pass "
    "batch_size=len(x) beside the closure"
)


def handed_over(function: object, batch: tuple[Any, ...], dims: Dims, batch_size: int | None) -> Piece:
    """Return what a call of ``accumulate`` or ``step`` was given, checked."""
    if not callable(function):
        raise ValueError(
            f"a function is wanted, got {type(function).__name__}; pass one that returns the loss of a batch, such "
            "as def loss_of(x, y): return F.cross_entropy(model(x), y), and the batch: step(loss_of, x, y)"
        )
    if any(isinstance(argument, torch.amp.GradScaler) for argument in batch):
        raise ValueError("a scaler is no part of the batch; pass it by its name: scaler=scaler")
    size: int | None = None
    if batch_size is not None:
        size = operator.index(batch_size) if hasattr(batch_size, "__index__") else 0
        if size < 1 or isinstance(batch_size, bool):
            raise ValueError(f"batch_size must be a whole number >= 1, got {batch_size!r}")
    if not batch:
        return Piece(function, None, dims, size)
    found = size_of_each(batch, dims)
    if size is not None and found is not None and size != found:
        raise ValueError(f"batch_size is {size}, and the batch has {found} samples; leave batch_size out")
    return Piece(function, batch, dims, found if size is None else size)


def _loss_and_outputs(result: Any) -> tuple[Any, Any]:
    """Part what a loss function returned: the loss, and what it returned beside it, without a graph."""
    if not isinstance(result, tuple) or not result:
        return result, None
    outputs = torch.utils._pytree.tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, result[1:])
    return result[0], outputs


def checked_losses(losses: object, expected: int | None, *, one_loss_each: bool = False) -> Tensor:
    """Return what a loss function returned, ``expected`` losses if that is known, or say what is wrong with it."""
    if not isinstance(losses, Tensor):
        raise ValueError(
            f"the loss function returned {type(losses).__name__}; return a tensor, one loss a sample or their mean, "
            "graph attached"
        )
    if losses.dim() > 1:
        raise ValueError(
            f"the loss function returned losses of shape {tuple(losses.shape)}; return one loss per sample, shape "
            "(batch,): average over the other dimensions, for example losses.flatten(1).mean(1)"
        )
    if losses.numel() == 0:
        raise ValueError("the loss function returned no losses: the batch is empty; skip empty batches")
    if not losses.is_floating_point():
        raise ValueError(f"the loss function returned losses of type {losses.dtype}; return floating-point losses")
    if losses.shape == (1,) and expected not in (None, 1):  # how some detectors return a scalar
        losses = losses.squeeze(0)
    if losses.dim() and expected is not None and len(losses) != expected:
        raise ValueError(
            f"the loss function returned {len(losses)} losses for {expected} samples; return one for each sample that "
            "it is called with (a mean over tokens or boxes for each), or their mean; batch_size, if given, is len(x)"
        )
    if losses.dim() == 0 and one_loss_each:
        raise ValueError(
            "the loss function returned a scalar; this method ranks samples, so return one loss per sample "
            '(reduction="none")'
        )
    return losses


def joined_pieces(pieces: list[Piece], dim: Dims) -> tuple[Tensor, Any]:
    """Return the losses of a micro-batch, and what its function returned beside them, in the order of the batch."""
    if not pieces:  # all samples of this micro-batch were left out
        return torch.empty(0), None
    losses = joined([piece.losses for piece in pieces], [p.samples for p in pieces], [p.count(None) for p in pieces])
    if pieces[0].outputs is None:
        return losses, None
    along = dim if isinstance(dim, int) else 0
    outputs = [piece.outputs for piece in pieces]
    return losses, joined(outputs, [p.samples for p in pieces], [p.count(None) for p in pieces], along)
