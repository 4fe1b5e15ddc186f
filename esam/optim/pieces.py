"""How are samples run, and run again, and what may a loss function return?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .indexing import EVERYTHING, Dims, joined, take_each, versions

if TYPE_CHECKING:
    from .flow import Step

Closure = Callable[[slice | Tensor], Any]
"""Samples to keep, ``slice(None)`` or indices on the CPU -> their losses, or the mean of them."""
LossKind = Literal["mean", "sum", "whole"]
RandomState = list[tuple[torch.device, Tensor]]
_CPU = torch.device("cpu")


class Piece:
    """Samples of one micro-batch, all or some of them: knows how to run them, and to run them again."""

    __slots__ = ("_arguments", "_autocast", "_dims", "_function", "_random", "_versions", "counted", "losses",
                 "outputs", "samples", "size")  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...] | None,
        dims: Dims,
        size: int,
        samples: Tensor | None = None,
    ) -> None:
        self._function, self._arguments, self._dims = function, arguments, dims
        self.size = size
        """How many samples there are; 0 before the first pass where nobody has said."""
        self.counted = True
        """Whether that is known; a scalar loss of a batch without a size counts as one sample."""
        self.samples = samples
        """Which of the micro-batch's samples these are; None: all."""
        self.losses: Tensor
        """Of each sample at theta, detached; a mean stands for each of its samples."""
        self.outputs: Any = None
        """What the function returned beside the loss, detached."""
        self._random: RandomState = []
        self._autocast: list[tuple[str, torch.dtype]] = []
        self._versions: list[int] | None = None
        """How often each tensor of the arguments had been written to when ``remember_state`` was called."""

    def cut(self, samples: Tensor) -> Piece:
        """Return some of the samples."""
        arguments = None if self._arguments is None else self.arguments(samples)
        return Piece(self._function, arguments, self._dims, len(samples), samples)

    def count(self, keep: Tensor | None) -> int:
        """Return how many samples ``run(keep)`` runs."""
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
        if self._versions is not None and self._versions != versions(self._arguments):
            raise ValueError(
                "the loss function changes its batch in place, so a second pass would run on what the first has left; "
                "work on a copy there, as in x = x / 255, or change the batch before the step"
            )
        if keep is None:
            return self._arguments
        return take_each(self._arguments, keep, self._dims, self.size)

    def remember_state(self, devices: Sequence[torch.device]) -> None:
        """Let later runs of these samples see the random numbers that come now, and the autocast of now."""
        self._random = random_state(devices)
        self._versions = None if self._arguments is None else versions(self._arguments)
        kinds = {"cpu", *(d.type for d in devices)}
        self._autocast = [(k, torch.get_autocast_dtype(k)) for k in kinds if torch.is_autocast_enabled(k)]

    def replay_state(self, undo: list[Callable[[], Any]]) -> None:
        """Bring the random numbers and the autocast of the first run back; add what ends that to ``undo``."""
        before = random_state([device for device, _ in self._random[1:]])
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
        if self.size == 0:
            self.size, self.counted = losses.numel(), losses.dim() > 0
        self.losses = losses.detach() if losses.dim() else losses.detach().expand(self.size)
        return losses

    def release(self) -> None:
        """Let go of the samples: they will not run again."""
        self._arguments = None


def random_state(devices: Sequence[torch.device]) -> RandomState:
    """Return the state of the CPU's random numbers, and of these accelerators'."""
    state = [(_CPU, torch.default_generator.get_state())]
    for device in devices:
        state.append((device, torch.get_device_module(device).get_rng_state(device)))
    return state


def set_random_state(state: RandomState) -> None:
    """Go on drawing from here."""
    for device, values in state:
        if device is _CPU:
            torch.default_generator.set_state(values)
        else:
            torch.get_device_module(device).set_rng_state(values, device)


class Pass:
    """One run of a piece: what is in force while it runs, and what becomes of its losses."""

    def __init__(
        self,
        step: Step,
        piece: Piece,
        accept: Callable[[Tensor], None],
        *,
        keep: Tensor | None = None,
        first: bool = False,
        again: bool = True,
        sync: bool = False,
        quiet: bool = True,
        graph: bool = True,
    ) -> None:
        self.step, self.piece, self.accept, self.keep = step, piece, accept, keep
        self.first, self.again, self.sync, self.quiet, self.graph = first, again, sync, quiet, graph
        self.taken = False
        """Whether its loss has been seen."""
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
        step, undo = self.step, self._undo
        step.running, step.optimizer.first_pass = self, self.first
        if not self.sync and (no_sync := step.ranks.no_sync()) is not None:
            undo.append(lambda: no_sync.__exit__(None, None, None))
            no_sync.__enter__()
        if self.quiet:
            step.keep_buffers(undo)
        else:
            step.buffers = None  # no copy shows them as they will be
        if not self.first:
            self.piece.replay_state(undo)
        elif self.again:
            self.piece.remember_state(step.devices)
        if not self.graph:
            undo.append(torch.clear_autocast_cache)  # it would hand later passes weights without a graph
        torch._C._set_grad_enabled(self.graph)

    def leave(self) -> None:
        """End all of that, in reverse; what an interrupt leaves is left to the next call."""
        torch._C._set_grad_enabled(False)
        while self._undo:
            self._undo[-1]()
            self._undo.pop()

    def take(self, result: Any) -> None:
        """Do with what the function returned whatever this pass is there for."""
        one_loss_each, self.taken = self.step.optimizer.needs_losses, True
        if self.first:
            losses = self.piece.accept_first(result, one_loss_each=one_loss_each)
        else:
            loss, expected = _loss_and_outputs(result)[0], self.piece.count(self.keep)
            losses = checked_losses(loss, expected, one_loss_each=one_loss_each)
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


def reduced(losses: Tensor, kind: LossKind) -> Tensor:
    """Return the scalar to differentiate."""
    if losses.dim() == 0:
        return losses
    return losses.sum() if kind == "sum" else losses.mean()


UNCOUNTED = (
    "parts of the batch are to run, and its size is not known; hand the batch over, as in step(loss_of, x, y), or pass "
    "batch_size=len(x) beside the closure"
)


def _loss_and_outputs(result: Any) -> tuple[Any, Any]:
    """Part what a loss function returned: the loss, and what it returned beside it, without a graph."""
    if not isinstance(result, tuple) or not result:
        return result, None
    outputs = torch.utils._pytree.tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, result[1:])
    return result[0], outputs


def checked_losses(losses: object, expected: int, *, one_loss_each: bool) -> Tensor:
    """Return what a loss function returned, ``expected`` losses (0: not known), or say what is wrong with it."""
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
    if losses.shape == (1,) and expected > 1:  # how some detectors return a scalar
        losses = losses.squeeze(0)
    if losses.dim() and expected and len(losses) != expected:
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
    samples, sizes = [piece.samples for piece in pieces], [piece.size for piece in pieces]
    losses = joined([piece.losses for piece in pieces], samples, sizes)
    if pieces[0].outputs is None:
        return losses, None
    along = dim if isinstance(dim, int) else 0
    return losses, joined([piece.outputs for piece in pieces], samples, sizes, along)
