"""How are some samples taken out of a batch, whatever holds it?"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")


def take(batch: Batch, keep: slice | Tensor) -> Batch:
    """Return the samples at ``keep`` of a batch: a tensor, or dicts, lists, tuples and objects that hold tensors.

    Everything with one row a sample is indexed: tensors, arrays, and lists of strings or numbers as long as the batch.
    Numbers, strings, None and tensors without dimensions stay as they are. ``slice(None)`` returns the batch itself.

    >>> take({"x": torch.arange(3), "names": ["a", "b", "c"], "epoch": 7}, torch.tensor([0, 2]))
    {'x': tensor([0, 2]), 'names': ['a', 'c'], 'epoch': 7}
    """
    if isinstance(keep, slice) and keep == slice(None):
        return batch
    sizes = sorted({len(rows) for rows in _rows(batch)})
    if len(sizes) != 1:
        held = f"tensors of {sizes} rows" if sizes else "no tensor"
        raise ValueError(
            f"take() must know how many samples the batch has, and this {type(batch).__name__} holds {held}; index it "
            "yourself, as in model(x[keep])"
        )
    taken: Batch = _taken(batch, keep, sizes[0])
    return taken


def size_of(batch: Any) -> int | None:
    """Return how many samples a batch has; None where its tensors do not agree.

    >>> size_of({"x": torch.zeros(3, 2), "weight": torch.tensor(1.0)})
    3
    """
    sizes = {len(rows) for rows in _rows(batch)}
    return sizes.pop() if len(sizes) == 1 else None


def _rows(batch: Any) -> Iterator[Any]:
    """Yield all tensors and arrays in a batch that have rows."""
    if _has_rows(batch):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _rows(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _rows(value)
    else:
        for value in _attributes(batch).values():
            yield from _rows(value)


def _taken(batch: Any, keep: slice | Tensor, size: int) -> Any:
    if isinstance(batch, Tensor) and batch.dim():
        return batch[keep.to(batch.device) if isinstance(keep, Tensor) else keep]
    if _has_rows(batch):
        return batch[keep.tolist() if isinstance(keep, Tensor) else keep]
    if isinstance(batch, Mapping):
        found = {key: _taken(value, keep, size) for key, value in batch.items()}
        return found if type(batch) is dict else _rebuilt(batch, found)
    if isinstance(batch, (list, tuple)):
        if len(batch) == size and not any(True for _ in _rows(batch)):
            rows = range(size)[keep] if isinstance(keep, slice) else keep.tolist()
            return type(batch)([batch[i] for i in rows])
        values = [_taken(value, keep, size) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    held = {name: value for name, value in _attributes(batch).items() if any(True for _ in _rows(value))}
    if not held:
        return batch
    changed = copy.copy(batch)
    for name, value in held.items():
        object.__setattr__(changed, name, _taken(value, keep, size))  # a frozen dataclass too
    return changed


def _rebuilt(batch: Any, values: dict[Any, Any]) -> Any:
    """Return a mapping like this one, with these values."""
    changed = copy.copy(batch)
    if isinstance(getattr(batch, "data", None), dict):  # a UserDict may keep more beside its data
        changed.data = values
    else:
        for key, value in values.items():
            changed[key] = value
    return changed


def _has_rows(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() > 0
    return type(value).__module__ == "numpy" and bool(getattr(value, "shape", ()))


def _attributes(value: Any) -> dict[str, Any]:
    """Return what an object holds, if it is a plain container: not a module, a class or a function."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    plain = not isinstance(value, (type, torch.nn.Module, Tensor)) and not callable(value)
    return dict(vars(value)) if plain and hasattr(value, "__dict__") else {}
