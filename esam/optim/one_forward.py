"""When can the backward run on the kept samples alone, after a forward pass that ran on all of them?

When no sample's output depends on another sample. Then the ranking need not be followed by one more forward pass: the
kept samples' rows are picked from what it saved for the backward. Autograd has no such backward, so the model is traced
by AOTAutograd for both batch sizes, and the forward of the larger runs, then the backward of the smaller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .batch import Piece
from .halves import Halves, traced_halves
from .randomness import random_state, replayed, set_random_state
from .rows import Kept, Store, laid_out
from .warn import warn_caller

TRACES = 16
"""So many combinations of shape, mode and the like are traced, at about a second each; two for a batch size."""

Forward = Callable[..., Any]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Obstacle(Exception):
    """Why one forward is not enough here."""


class OneForward:
    """Ranks by forward passes whose backward can run on some samples; where that cannot be, says so once.

    Each combination of shapes is proved on its first use: the outputs must be the model's own, and the gradient that of
    the backward on the whole batch.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._traces: dict[Hashable, tuple[Halves, TreeSpec]] = {}
        self._proved: set[Hashable] = set()
        self._obstacle: str | None = None
        self._told: set[str] = set()

    def losses(self, piece: Piece) -> Tensor:
        """Return the loss of each sample; where it can be, the piece keeps what its backward needs. Under no_grad."""
        obstacle = self._obstacle or _obstacle_in(self._model)
        if obstacle is not None:
            self._tell(obstacle)
            return piece.losses_again()
        with torch.enable_grad():
            once = _Pass(self, piece)
            with once.in_place_of(self._model):
                losses = piece.losses_again()
            once.keep_for(piece, losses)
        return losses.detach()

    def give_up(self, obstacle: object) -> None:
        """Run the kept samples forward again from now on."""
        self._obstacle = str(obstacle).strip().split("\n")[0] or type(obstacle).__name__
        self._tell(self._obstacle)

    def _tell(self, obstacle: str) -> None:
        if obstacle not in self._told:
            self._told.add(obstacle)
            warn_caller(f"one_forward is not used: {obstacle}; the kept samples run forward again")

    def trace(self, forward: Forward, leaves: list[Any], spec: TreeSpec) -> tuple[Hashable, Halves, TreeSpec]:
        """Return the two graphs of the model for these inputs, and the key under which they are kept."""
        state = _state(self._model)
        tensors = [*state.values(), *(leaf for leaf in leaves if isinstance(leaf, Tensor))]
        key = (_mode(self._model), tuple(map(_kind, tensors)), tuple(map(_constant, leaves)), str(spec))
        if key not in self._traces:
            if len(self._traces) == TRACES:
                raise Obstacle(f"more than {TRACES} combinations of shapes and modes have been met")
            found: list[TreeSpec] = []

            def function(*values: Tensor) -> tuple[Tensor, ...]:
                inputs = iter(values[len(state) :])
                args, kwargs = tree_unflatten([next(inputs) if isinstance(x, Tensor) else x for x in leaves], spec)
                result = torch.func.functional_call(
                    _Bare(self._model, forward), dict(zip(state, values, strict=False)), args, kwargs
                )
                outputs, out_spec = tree_flatten(result)
                found.append(out_spec)
                return tuple(outputs)

            with _without_a_trace(self._model):
                halves = traced_halves(function, tensors)
            self._traces[key] = halves, found[-1]
        return key, *self._traces[key]

    def is_proved(self, key: Hashable) -> bool:
        """Tell whether this combination has been seen to give the right numbers."""
        return key in self._proved

    def proved(self, key: Hashable) -> None:
        """Remember that this combination gives the right numbers."""
        self._proved.add(key)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_traces": {}, "_proved": set()}  # graphs are traced again rather than copied


class _Pass:
    """One forward pass of a piece, by the traced graph, and what its backward needs."""

    def __init__(self, owner: OneForward, piece: Piece) -> None:
        self._owner, self._size, self._devices = owner, piece.count(None), piece.devices
        self._calls = 0
        self._kept: tuple[Kept, Halves] | None = None
        self._saved: list[Tensor | None] = []

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """Answer calls of the model inside this block; its own hooks run as ever."""
        own = vars(model).get("forward")
        forward: Forward = model.forward

        def replacement(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            now = random_state(self._devices)
            try:
                return self._run(forward, args, kwargs)
            except Exception as error:  # private parts of torch may raise anything
                self._owner.give_up(error)
                set_random_state(now)
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
        if self._owner._obstacle is None:
            self._losses = losses
            piece.ranked = self.losses_of

    def losses_of(self, keep: Tensor) -> Tensor | None:
        """Return the losses of these samples; their backward runs on them alone. None: it cannot."""
        losses = self._losses[keep]
        try:
            leaves = [x[: len(keep)] if isinstance(x, Tensor) else x for x in self._leaves]
            key, halves, _ = self._owner.trace(self._forward, leaves, self._spec)
            if halves.steps != self._halves.steps:
                raise Obstacle("the model computes differently for another batch size")
            self._kept = Kept(keep, self._size), halves
            pair = (self._key, key)
            if not self._owner.is_proved(pair):
                if not self._owner.is_proved(self._key) or not self._prove(losses):
                    return None
                self._owner.proved(pair)
        except Exception as error:
            self._owner.give_up(error)
            return None
        return losses

    def backward(self, tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the gradients of the tensors, given those of the outputs; uses up what was saved."""
        assert self._kept is not None, "the samples are chosen first"
        saved, self._saved = self._saved, []
        return self._gradients(saved, tangents)

    def _run(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._calls > 1:
            raise Obstacle("the closure calls the model more than once")
        if not torch.is_grad_enabled():
            raise Obstacle("the closure calls the model without a graph")
        self._forward = forward
        self._leaves, self._spec = tree_flatten((args, kwargs))
        inputs = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        if not inputs or any(x.dim() == 0 or len(x) != self._size for x in inputs):
            raise Obstacle("an input of the model does not have one row a sample")
        if any(x.requires_grad for x in inputs):
            raise Obstacle("an input of the model needs a gradient")
        if any(torch.is_autocast_enabled(kind) for kind in {"cpu", *(d.type for d in self._devices)}):
            raise Obstacle("the model runs under autocast")
        self._key, self._halves, out_spec = self._owner.trace(forward, self._leaves, self._spec)
        if any(out.dim() == 0 or len(out) != self._size for out in self._halves.outputs):
            raise Obstacle("an output of the model does not have one row a sample")
        expected = None
        if not self._owner.is_proved(self._key):
            with torch.no_grad(), replayed(random_state(self._devices)):
                expected = forward(*args, **kwargs)
        self._outputs = _Model.apply(self, *_state(self._owner._model).values(), *inputs)  # type: ignore[no-untyped-call]
        if expected is not None and _all_finite(self._outputs):
            if not _agree(tree_flatten(expected)[0], self._outputs):
                raise Obstacle("the traced model gives other outputs")
            self._owner.proved(self._key)
        return tree_unflatten(list(self._outputs), out_spec)

    def compute(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run the forward graph and remember what the backward needs."""
        results = self._halves.forward(*tensors)
        outputs = results[: len(self._halves.outputs)]
        self._saved = [s.detach() for s in results[len(outputs) :]]  # detached: an output would hold this pass for ever
        self._foreign = {t.untyped_storage().data_ptr() for t in (*tensors, *outputs)}
        return tuple(outputs)

    def _gradients(self, saved: list[Tensor | None], tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
        assert self._kept is not None
        kept, halves = self._kept
        rows = [laid_out(t.index_select(0, kept.order), like) for t, like in zip(tangents, halves.outputs, strict=True)]
        gradients: Sequence[Tensor | None] = halves.backward(Store(saved, halves.saved, kept, self._foreign), *rows)
        return gradients

    def _prove(self, losses: Tensor) -> bool:
        """Compare with the backward on the whole batch; False: the numbers are not finite, so it cannot be told."""
        assert self._kept is not None
        tangents = torch.autograd.grad(losses.sum(), self._outputs, retain_graph=True)
        others = torch.ones(self._size, dtype=torch.bool, device=losses.device)
        others[self._kept[0].order] = False
        if not _all_finite(tangents):
            return False
        if any(t[others].any() for t in tangents):
            raise Obstacle("the loss of a sample depends on other samples")
        with torch.no_grad():
            like = self._halves.outputs
            store = Store(list(self._saved), self._halves.saved, None, self._foreign)
            whole = self._halves.backward(store, *map(laid_out, tangents, like))
            part = self._gradients(list(self._saved), tangents)
        found = [g for g in whole if g is not None]
        if not _all_finite(found):
            return False
        if not _agree(found, [g for g in part if g is not None]):
            raise Obstacle("the output of a sample depends on other samples, or its rows could not be told apart")
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


class _Bare(nn.Module):
    """The model without its own hooks: these run around the traced graph."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model, self.run = model, forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        before = list(self.buffers())
        result = self.run(*args, **kwargs)
        if any(a is not b for a, b in zip(before, self.buffers(), strict=True)):
            raise Obstacle("the model replaces a buffer in its forward pass")
        return result


def _obstacle_in(model: nn.Module) -> str | None:
    if hasattr(model, "no_sync"):
        return "ranks exchange gradients by hooks that watch the model's own forward pass"
    if getattr(torch.nn.modules.module, "_has_any_global_hook", bool)():
        return "there are hooks for all modules"
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            return "BatchNorm normalises by the statistics of the samples that run together"
        if isinstance(layer, torch.jit.ScriptModule) or layer._compiled_call_impl or "_orig_mod" in layer._modules:
            return "the model is compiled"
        if layer is not model and any(getattr(layer, hooks) for hooks in _HOOKS):
            return "a layer inside the model has hooks"
    return None


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by the names that they have inside ``_Bare``."""
    return {f"model.{name}": t for part in (model.named_parameters(), model.named_buffers()) for name, t in part}


def _mode(model: nn.Module) -> Hashable:
    """Return what a forward pass may look at besides tensors: training or not, the rate of a dropout, and so on."""
    return tuple(
        (key, value if isinstance(value, (bool, int, float, str)) else (id(value), value._version))
        for layer in model.modules()
        for key, value in vars(layer).items()
        if isinstance(value, (bool, int, float, str, Tensor))
    )


def _kind(t: Tensor) -> Hashable:
    return t.shape, t.stride(), t.dtype, t.device, t.requires_grad


def _constant(leaf: object) -> Hashable:
    if isinstance(leaf, Tensor):
        return Tensor
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return type(leaf), leaf
    raise Obstacle(f"an input of the model is a {type(leaf).__name__}")


@contextmanager
def _without_a_trace(model: nn.Module) -> Iterator[None]:
    """Refuse a forward pass that leaves something behind besides its outputs: it would happen while tracing only."""
    before = [(layer, dict(vars(layer))) for layer in model.modules()]
    state = random.getstate()
    try:
        with replayed(random_state({t.device for t in model.parameters() if not t.is_cpu})):
            yield
        if random.getstate() != state:
            raise Obstacle("the model draws from Python's random numbers")
        for layer, found in before:
            if _changed(layer, found):
                raise Obstacle(f"the forward pass changes an attribute of {type(layer).__name__}")
    finally:
        random.setstate(state)
        for layer, found in before:
            if _changed(layer, found):
                vars(layer).clear()
                vars(layer).update(found)


def _changed(layer: nn.Module, found: dict[str, Any]) -> bool:
    now = vars(layer)
    return now.keys() != found.keys() or any(now[key] is not value for key, value in found.items())


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
