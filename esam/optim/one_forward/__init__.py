"""When can the backward run on the kept samples alone, after a forward pass that ran on all of them?

When no sample's output depends on another sample. Then the ranking need not be followed by one more forward pass: the
kept samples' rows are picked from what it saved for the backward. Autograd has no such backward, so the model is traced
by AOTAutograd for both batch sizes, and the forward of the larger runs, then the backward of the smaller.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..batch import Piece
from ..randomness import random_state, replayed, set_random_state
from ..warn import warn_caller
from .halves import Halves
from .rows import Kept, Store, laid_out
from .tracing import Call, Forward, Obstacle, Traces, obstacle_in


class OneForward:
    """Ranks by forward passes whose backward can run on some samples; where that cannot be, says so once.

    Each combination of shapes is proved on its first use: the outputs must be the model's own, and the gradient that of
    the backward on the whole batch.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.traces = Traces(model)
        self.proved: set[Hashable] = set()
        """Keys of traces whose outputs were right, and pairs of keys whose gradients were."""
        self.obstacle: str | None = None
        """Why it has been given up for good."""
        self._told: set[str] = set()

    def losses(self, piece: Piece) -> Tensor:
        """Return the loss of each sample; where it can be, the piece keeps what its backward needs. Under no_grad."""
        obstacle = self.obstacle or obstacle_in(self._model)
        if obstacle is not None:
            self._tell(obstacle)
            return piece.losses_again()
        once = _Pass(self, piece)
        try:
            with torch.enable_grad(), once.in_place_of(self._model):
                losses = piece.losses_again()
        except BaseException:
            once.forget()
            raise
        once.keep_for(piece, losses)
        return losses.detach()

    def give_up(self, obstacle: object) -> None:
        """Run the kept samples forward again from now on."""
        self.obstacle = str(obstacle).strip().split("\n")[0] or type(obstacle).__name__
        self._tell(self.obstacle)

    def _tell(self, obstacle: str) -> None:
        if obstacle not in self._told:
            self._told.add(obstacle)
            warn_caller(f"one_forward is not used: {obstacle}; the kept samples run forward again")

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self._model, "obstacle": self.obstacle}  # a copy traces anew

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["model"])  # type: ignore[misc]
        self.obstacle = state["obstacle"]


class _Pass:
    """One forward pass of a piece, by the traced graph, and what its backward needs."""

    def __init__(self, owner: OneForward, piece: Piece) -> None:
        self._owner, self._size, self._devices = owner, piece.count(None), piece.devices
        self._calls = 0
        self.forget()

    def forget(self) -> None:
        """Let go of the graph and of all that was saved: they hold this pass, and it them."""
        self._losses: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()
        self._saved: list[Tensor | None] = []

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """Answer calls of the model inside this block; its own hooks run as ever."""
        own = vars(model).get("forward")
        forward: Forward = model.forward

        def replacement(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            numbers = random_state(self._devices)
            try:
                return self._run(forward, args, kwargs)
            except Exception as error:  # private parts of torch may raise anything
                self._owner.give_up(error)
                set_random_state(numbers)
            return forward(*args, **kwargs)

        model.forward = replacement
        try:
            yield
        finally:
            del model.forward
            if own is not None:
                model.forward = own

    def keep_for(self, piece: Piece, losses: Tensor) -> None:
        """Let the piece take the losses of kept samples from this pass, if all went well."""
        if self._calls == 0:
            self._owner.give_up("the closure does not call the model")
        if self._owner.obstacle is None:
            self._losses = losses
            piece.ranked = self.losses_of
        else:
            self.forget()

    def losses_of(self, keep: Tensor) -> Tensor | None:
        """Return the losses of these samples; their backward runs on them alone. None: it cannot."""
        assert self._losses is not None
        try:
            key, trace = self._owner.traces.of(self._call.of_first(len(keep)))
            if trace.halves.steps != self._trace.halves.steps:
                raise Obstacle("the model computes differently for another batch size")
            self._kept, self._kept_halves = Kept(keep, self._size), trace.halves
            losses = self._losses[keep]
            pair = (self._key, key)
            if pair in self._owner.proved or self._prove(losses, pair):
                return losses
        except Exception as error:
            self._owner.give_up(error)
        self.forget()
        return None

    def compute(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run the forward graph and remember what the backward needs."""
        results = self._trace.halves.forward(*tensors)
        outputs = results[: len(self._trace.halves.outputs)]
        self._saved = list(results[len(outputs) :])
        self._foreign = {t.untyped_storage().data_ptr() for t in (*tensors, *outputs)}
        return tuple(outputs)

    def backward(self, tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the gradients of the tensors, given those of the outputs; uses up what was saved."""
        saved = self._saved
        self.forget()
        return self._gradients(saved, tangents)

    def _run(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._call = Call(forward, *tree_flatten((args, kwargs)))
        self._check_call()
        self._key, self._trace = self._owner.traces.of(self._call)
        if any(out.dim() == 0 or len(out) != self._size for out in self._trace.halves.outputs):
            raise Obstacle("an output of the model does not have one row a sample")
        proved = self._key in self._owner.proved
        if not proved:
            with torch.no_grad(), replayed(random_state(self._devices)):
                expected = tree_flatten(forward(*args, **kwargs))[0]
        tensors = [*self._owner.traces.state().values(), *self._call.inputs]
        self._outputs = _Model.apply(self, *tensors)  # type: ignore[no-untyped-call]
        if not proved and _all_finite(self._outputs):
            if not _agree(expected, self._outputs):
                raise Obstacle("the traced model gives other outputs")
            self._owner.proved.add(self._key)
        return tree_unflatten(self._outputs, self._trace.outputs)

    def _check_call(self) -> None:
        inputs = self._call.inputs
        if self._calls > 1:
            raise Obstacle("the closure calls the model more than once")
        if not torch.is_grad_enabled():
            raise Obstacle("the closure calls the model without a graph")
        if not inputs or any(x.dim() == 0 or len(x) != self._size for x in inputs):
            raise Obstacle("an input of the model does not have one row a sample")
        if any(x.requires_grad for x in inputs):
            raise Obstacle("an input of the model needs a gradient")
        if any(torch.is_autocast_enabled(kind) for kind in {"cpu", *(d.type for d in self._devices)}):
            raise Obstacle("the model runs under autocast")

    def _gradients(self, saved: list[Tensor | None], tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
        kept, halves = self._kept, self._kept_halves
        rows = [tangent.index_select(0, kept.order) for tangent in tangents]
        return _run_backward(halves, Store(saved, halves.saved, kept, self._foreign), rows)

    def _prove(self, losses: Tensor, pair: Hashable) -> bool:
        """Compare with the backward on the whole batch; False: the numbers are not finite, so it cannot be told."""
        tangents = torch.autograd.grad(losses.sum(), self._outputs, retain_graph=True)
        if self._key not in self._owner.proved or not _all_finite(tangents):
            return False
        others = torch.ones(self._size, dtype=torch.bool, device=losses.device)
        others[self._kept.order] = False
        if any(tangent[others].any() for tangent in tangents):
            raise Obstacle("the loss of a sample depends on other samples")
        with torch.no_grad():
            halves = self._trace.halves
            store = Store(list(self._saved), halves.saved, None, self._foreign)
            whole = [g for g in _run_backward(halves, store, tangents) if g is not None]
            part = [g for g in self._gradients(list(self._saved), tangents) if g is not None]
        if not _all_finite(whole):
            return False
        if not _agree(whole, part):
            raise Obstacle("the output of a sample depends on other samples, or its rows could not be told apart")
        self._owner.proved.add(pair)
        return True


class _Model(torch.autograd.Function):
    """The traced model as a step of autograd, so that hooks, scaling and accumulation work as ever."""

    @staticmethod
    def forward(ctx: Any, once: _Pass, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.once = once
        return once.compute(tensors)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> Any:
        return None, *ctx.once.backward(tangents)


def _run_backward(halves: Halves, store: Store, tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
    gradients: Sequence[Tensor | None] = halves.backward(store, *map(laid_out, tangents, halves.outputs))
    return gradients


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _agree(expected: Sequence[Tensor], got: Sequence[Tensor]) -> bool:
    """Tell whether the tensors are equal but for rounding; one much smaller than the rest may be rounding alone."""
    if [t.shape for t in expected] != [t.shape for t in got]:
        return False
    norms = torch.stack([torch.linalg.vector_norm(t).double() for t in expected])
    errors = torch.stack([torch.linalg.vector_norm(a - b).double() for a, b in zip(expected, got, strict=True)])
    tolerance = max(torch.finfo(t.dtype).eps for t in expected) ** 0.5
    return bool((errors <= tolerance * (norms + 0.01 * norms.norm())).all())
