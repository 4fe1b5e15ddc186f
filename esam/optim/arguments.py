"""What is a step called with: a function and a batch, or closures, and do these still mean the same batch?"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from .checks import checked_count
from .indexing import Dims, size_of_each
from .pieces import Piece


def handed_over(function: object, batch: tuple[Any, ...], dims: Dims, batch_size: int | None) -> Piece:
    """Return what a call of ``accumulate`` or ``step`` was given, checked."""
    if not callable(function):
        raise ValueError(
            f"a function is wanted, got {type(function).__name__}; pass one that returns the loss of a batch, such "
            "as def loss_of(x, y): return F.cross_entropy(model(x), y), and the batch: step(loss_of, x, y)"
        )
    if any(isinstance(argument, GradScaler) for argument in batch):
        raise ValueError("a scaler is no part of the batch; pass it by its name: scaler=scaler")
    size = 0 if batch_size is None else checked_count("batch_size", batch_size, "samples")
    if not batch:
        return Piece(function, None, dims, size)
    samples = size_of_each(batch, dims)
    if samples == 0:
        raise ValueError("the batch is empty; skip empty batches")
    if size and samples is not None and size != samples:
        raise ValueError(f"batch_size is {size}, and the batch has {samples} samples; leave batch_size out")
    return Piece(function, batch, dims, size or samples or 0)


def micro_batches(loss_of: Any, batch: tuple[Any, ...], dims: Dims, batch_size: Any) -> list[Piece]:
    """Return what a call of ``step`` was given: one micro-batch, or one for each of a list of closures."""
    if not isinstance(loss_of, (list, tuple)):
        return [handed_over(loss_of, batch, dims, batch_size)]
    if batch:
        raise ValueError("a list of closures takes no batch; call accumulate(loss_of, x, y) for each micro-batch")
    sizes = [None] * len(loss_of) if batch_size is None else batch_size
    if not loss_of or not isinstance(sizes, (list, tuple)) or len(sizes) != len(loss_of):
        raise ValueError(f"batch_size must have one number for each of {len(loss_of)} closures, got {batch_size}")
    return [handed_over(closure, (), dims, size) for closure, size in zip(loss_of, sizes, strict=True)]


class Bindings:
    """The tensors and fractions that a function reads by name; Python looks them up anew whenever it is called."""

    def __init__(self, closure: Any) -> None:
        self._closure = closure
        self._seen = dict(_bindings(closure))

    def refuse_changes(self) -> None:
        """Refuse a closure whose names stand for other objects than in its first pass, in a loop for example."""
        now = dict(_bindings(self._closure))
        for name, value in self._seen.items():
            if (other := now.get(name, value)) is not value and not (isinstance(value, float) and other == value):
                raise ValueError(
                    f"the closure reads {name}, which stands for another object than when accumulate() ran it, so its "
                    "second pass would see another batch; hand all of it over, as in accumulate(loss_of, x, y), or bind"
                    f" it: lambda keep, {name}={name}: ..."
                )


def _bindings(function: Any, depth: int = 3) -> Iterator[tuple[str, object]]:
    """Yield what a function reads from outside: tensors, fractions, and dicts, lists and tuples that hold some."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType) or depth == 0:
        return
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    outside: dict[str, object] = {}
    for name, cell in cells.items():
        try:
            outside[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    known = function.__globals__
    outside.update({name: known[name] for name in _names(function.__code__)[0] if name in known})
    carried_out = _names(function.__code__)[1]
    for name, value in outside.items():
        if name in carried_out:
            continue
        if _holds_values(value):
            yield name, value
        elif isinstance(value, types.FunctionType) and value.__globals__ is known:
            yield from _bindings(value, depth - 1)


def _holds_values(value: object) -> bool:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(item, (Tensor, float)) for item in items)


@functools.lru_cache(maxsize=256)
def _names(code: types.CodeType) -> tuple[frozenset[str], set[str]]:
    """Return the global names that code reads, and the outer names that it sets."""
    read: set[str] = set()
    stored: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(str(instruction.argval))
        elif instruction.opname in ("STORE_DEREF", "STORE_GLOBAL"):
            stored.add(str(instruction.argval))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            read |= _names(inner)[0]
            stored |= _names(inner)[1]
    return frozenset(read), stored


def refuse_dropped_batches() -> None:
    """Refuse a closure that Accelerate hands on while it accumulates: it drops those of the batches in between."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.GradientState._shared_state or (steps := state.GradientState().num_steps) <= 1:
        return
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__") == "accelerate.optimizer":
            raise ValueError(
                f"Accelerate runs one closure in {steps} and drops the other batches; call "
                "esam.integrations.accelerate.backward(accelerator, optimizer, loss_of, x, y) in place of "
                "accelerator.backward(loss), and optimizer.step() without arguments"
            )
        frame = frame.f_back
