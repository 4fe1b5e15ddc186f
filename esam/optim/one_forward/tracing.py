"""Which models can be traced, and when does a trace serve again?"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ..randomness import random_state, replayed
from .halves import Halves, traced_halves

TRACES = 16
"""So many combinations of shapes and modes are traced, at about a second each; a batch size needs two."""

Forward = Callable[..., Any]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Obstacle(Exception):
    """Why a model, or a closure, does not let one forward pass serve twice."""


@dataclass(frozen=True)
class Call:
    """How the model was called: its forward, and the arguments flattened."""

    forward: Forward
    leaves: list[Any]
    spec: TreeSpec

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def of_first(self, count: int) -> Call:
        """Return the call with so many samples."""
        leaves = [leaf[:count] if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        return Call(self.forward, leaves, self.spec)


@dataclass(frozen=True)
class Trace:
    """The model's two graphs for one kind of call."""

    halves: Halves
    outputs: TreeSpec


class Traces:
    """The traces of a model, each made when it is first needed."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._traces: dict[Hashable, Trace] = {}

    def of(self, call: Call) -> tuple[Hashable, Trace]:
        """Return the trace that serves this call, and its key; raises what tracing raises."""
        tensors = [*self.state().values(), *call.inputs]
        key = (_mode(self._model), *map(_kind, tensors), *map(_constant, call.leaves), str(call.spec))
        if key not in self._traces:
            if len(self._traces) == TRACES:
                raise Obstacle(f"more than {TRACES} combinations of shapes and modes have been met")
            with _leaving_nothing_behind(self._model):
                self._traces[key] = self._traced(call, tensors)
        return key, self._traces[key]

    def state(self) -> dict[str, Tensor]:
        """Return the model's parameters and buffers, the first inputs of every trace."""
        parts = (self._model.named_parameters(), self._model.named_buffers())
        return {f"model.{name}": tensor for part in parts for name, tensor in part}

    def _traced(self, call: Call, tensors: list[Tensor]) -> Trace:
        names = list(self.state())
        bare = _Bare(self._model, call.forward)
        specs: list[TreeSpec] = []

        def function(*values: Tensor) -> tuple[Tensor, ...]:
            inputs = iter(values[len(names) :])
            leaves = [next(inputs) if isinstance(leaf, Tensor) else leaf for leaf in call.leaves]
            args, kwargs = tree_unflatten(leaves, call.spec)
            result = torch.func.functional_call(bare, dict(zip(names, values, strict=False)), args, kwargs)
            outputs, spec = tree_flatten(result)
            specs.append(spec)
            return tuple(outputs)

        return Trace(traced_halves(function, tensors), specs[-1])


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


def obstacle_in(model: nn.Module) -> str | None:
    """Return why the model, as it is now, cannot be traced; None if nothing is known against it."""
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


def _mode(model: nn.Module) -> Hashable:
    """Return what a forward pass may look at besides tensors: training or not, the rate of a dropout, and so on."""
    return tuple(
        (key, (id(value), value._version) if isinstance(value, Tensor) else value)
        for layer in model.modules()
        for key, value in vars(layer).items()
        if isinstance(value, (bool, int, float, str, Tensor))
    )


def _kind(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _constant(leaf: object) -> Hashable:
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return type(leaf), leaf
    if isinstance(leaf, Tensor):
        return Tensor
    raise Obstacle(f"an input of the model is a {type(leaf).__name__}")


@contextmanager
def _leaving_nothing_behind(model: nn.Module) -> Iterator[None]:
    """Refuse a forward pass that does more than compute its outputs: the rest would happen while tracing only."""
    before = [(layer, dict(vars(layer))) for layer in model.modules()]
    numbers = random.getstate()
    try:
        with replayed(random_state({p.device for p in model.parameters() if not p.is_cpu})):
            yield
        if random.getstate() != numbers:
            raise Obstacle("the model draws from Python's random numbers")
        changed = [type(layer).__name__ for layer, found in before if _changed(layer, found)]
        if changed:
            raise Obstacle(f"the forward pass changes an attribute of {changed[0]}")
    finally:
        random.setstate(numbers)
        for layer, found in before:
            if _changed(layer, found):
                vars(layer).clear()
                vars(layer).update(found)


def _changed(layer: nn.Module, found: dict[str, Any]) -> bool:
    now = vars(layer)
    return now.keys() != found.keys() or any(now[key] is not value for key, value in found.items())
