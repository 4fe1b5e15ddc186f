"""How are some samples taken out of a batch, whatever holds it?"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Batch = TypeVar("Batch")
Dims = int | None | list[int | None] | tuple[int | None, ...]
"""The dimension of the samples: of all arguments, or one for each."""
EVERYTHING = slice(None)


def take(batch: Batch, keep: slice | Tensor, dim: int = 0) -> Batch:
    """Return the samples at ``keep`` of a batch: a tensor, or dicts, lists, tuples and objects that hold tensors.

    Everything with one row a sample is indexed: tensors (along ``dim``), arrays, and lists as long as the batch.
    Numbers, strings, None and tensors without dimensions stay as they are. ``slice(None)`` returns the batch itself.

    A list of tensors is read as columns, such as ``[x, y]``, where they have as many rows as the rest of the batch, as
    samples where there are as many of them; where neither can be told, it is refused.

    >>> take({"x": torch.arange(3), "names": ["a", "b", "c"], "epoch": 7}, torch.tensor([0, 2]))
    {'x': tensor([0, 2]), 'names': ['a', 'c'], 'epoch': 7}
    """
    if isinstance(keep, slice) and keep == EVERYTHING:
        return batch
    size = size_of(batch, dim)
    if size is None:
        sizes = sorted({n for candidates, _ in _evidence(batch, dim) for n in candidates})
        raise ValueError(
            f"take() must know how many samples the batch has, and this {type(batch).__name__} holds "
            f"{f'tensors of {sizes} rows' if sizes else 'no tensor'}; index it yourself, as in model(x[keep])"
        )
    rows = Rows(torch.arange(size)[keep] if isinstance(keep, slice) else keep)
    taken: Batch = _mapped(batch, rows, size, dim)
    return taken


def take_each(arguments: tuple[Any, ...], keep: Tensor, dims: Dims, size: int) -> tuple[Any, ...]:
    """Return the samples at ``keep`` of a function's arguments; one whose dimension is None is handed on whole."""
    rows = Rows(keep)
    each = zip(arguments, dims_of(arguments, dims), strict=True)
    return tuple([argument if dim is None else _mapped(argument, rows, size, dim) for argument, dim in each])


def size_of_each(arguments: tuple[Any, ...], dims: Dims) -> int | None:
    """Return how many samples a function's arguments have; None where they do not agree."""
    if dims == 0 and all(type(a) is Tensor and a.dim() for a in arguments):  # as in most loops
        sizes = {a.shape[0] for a in arguments}
        return sizes.pop() if len(sizes) == 1 else None
    each = zip(arguments, dims_of(arguments, dims), strict=True)
    return _agreed([e for a, dim in each if dim is not None for e in _evidence(a, dim)])


def versions(arguments: tuple[Any, ...]) -> list[int]:
    """Return how often each tensor in a function's arguments has been written to in place."""
    tensors = arguments if all(type(a) is Tensor for a in arguments) else pytree.tree_leaves(arguments)
    return [t._version for t in tensors if isinstance(t, Tensor) and not t.is_inference()]


def dims_of(arguments: tuple[Any, ...], dims: Dims) -> tuple[int | None, ...]:
    """Return each argument's dimension of samples."""
    if not isinstance(dims, (list, tuple)):
        return (dims,) * len(arguments)
    if len(dims) != len(arguments):
        raise ValueError(f"dim must be one number, or one for each of {len(arguments)} arguments, got {dims!r}")
    return tuple(dims)


def size_of(batch: Any, dim: int = 0) -> int | None:
    """Return how many samples a batch has; None where its tensors do not agree.

    >>> size_of({"x": torch.zeros(3, 2), "weight": torch.tensor(1.0)})
    3
    """
    return _agreed(list(_evidence(batch, dim)))


def _agreed(evidence: list[tuple[frozenset[int], bool]]) -> int | None:
    sizes = [candidates for candidates, certain in evidence if certain] or [c for c, _ in evidence]
    common = frozenset.intersection(*sizes) if sizes else frozenset()
    return next(iter(common)) if len(common) == 1 else None


class Rows:
    """Indices of samples, copied to each device at most once."""

    def __init__(self, keep: Tensor) -> None:
        self._on: dict[torch.device, Tensor] = {keep.device: keep}
        self._first = keep

    def on(self, device: torch.device) -> Tensor:
        """Return the indices where a tensor is."""
        if device not in self._on:
            fast = device.type == "cuda" and self._first.is_cpu  # a pinned copy does not wait for the device
            keep = self._first.pin_memory() if fast else self._first
            self._on[device] = keep.to(device, non_blocking=fast)
        return self._on[device]

    def numbers(self) -> list[int]:
        """Return the indices as numbers."""
        return list(self.on(torch.device("cpu")).tolist())


def _has_rows(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() > 0
    return type(value).__module__ == "numpy" and bool(getattr(value, "shape", ()))


def _row_count(value: Any, dim: int) -> int:
    return int(value.shape[dim] if len(value.shape) > dim else value.shape[0])


def _is_list_of_alike(value: Any) -> bool:
    """Tell whether a list's items are of one kind and shape: then they may be samples."""
    if not isinstance(value, list) or not value or type(value[0]) is not type(value[-1]):
        return False
    if isinstance(value[0], Tensor):
        return all(isinstance(v, Tensor) and v.dtype == value[0].dtype for v in value) and (
            all(v.shape == value[0].shape for v in value) or len({v.shape[:1] for v in value}) > 1
        )
    return all(type(v) is type(value[0]) for v in value)


def _evidence(batch: Any, dim: int) -> Iterator[tuple[frozenset[int], bool]]:
    """Yield the numbers of samples that each part of the batch may have, and whether it must have one of them."""
    if _has_rows(batch):
        yield frozenset([_row_count(batch, dim)]), True
    elif isinstance(batch, list) and _is_list_of_alike(batch):
        inside = _rows_inside(batch, dim)
        if len(inside) != 1:  # plain values, or samples of several lengths
            yield frozenset([len(batch)]), bool(inside)
        elif len(batch) == 1:
            yield inside, True
        else:
            yield inside | {len(batch)}, False
    else:
        for value in _children(batch):
            yield from _evidence(value, dim)


def _rows_inside(values: list[Any], dim: int) -> frozenset[int]:
    return frozenset(n for v in values for candidates, certain in _evidence(v, dim) if certain for n in candidates)


def _children(batch: Any) -> list[Any]:
    if isinstance(batch, (list, tuple)):
        return list(batch)
    return list(batch.values()) if isinstance(batch, Mapping) else list(_attributes(batch).values())


def _mapped(batch: Any, rows: Rows, size: int, dim: int) -> Any:
    if type(batch) is Tensor and batch.dim() > dim:  # as in most loops
        return batch.index_select(dim, rows.on(batch.device))

    def is_leaf(value: Any) -> bool:
        return isinstance(value, list) and len(value) == size and _is_list_of_alike(value)

    return pytree.tree_map(lambda leaf: _taken(leaf, rows, size, dim), batch, is_leaf=is_leaf)


def _taken(leaf: Any, rows: Rows, size: int, dim: int) -> Any:
    if isinstance(leaf, Tensor) and leaf.dim():
        if leaf.is_nested:
            raise ValueError("take() cannot index a nested tensor; index it yourself in closure(keep)")
        return leaf.index_select(dim if leaf.dim() > dim else 0, rows.on(leaf.device))
    if _has_rows(leaf):
        return leaf.take(rows.numbers(), axis=dim if leaf.ndim > dim else 0)
    if isinstance(leaf, list):  # as long as the batch, of things alike
        if _rows_inside(leaf, dim) == {size}:
            raise ValueError(
                f"the batch holds a list of {size} {type(leaf[0]).__name__}s with {size} rows each, which may be "
                "samples or columns; hand over a tuple of columns, or one tensor"
            )
        return [leaf[i] for i in rows.numbers()]
    if isinstance(leaf, Mapping):  # one that torch does not know, such as transformers' BatchEncoding
        return _rebuilt(leaf, {key: _mapped(value, rows, size, dim) for key, value in leaf.items()})
    held = {name: v for name, v in _attributes(leaf).items() if any(True for _ in _evidence(v, dim))}
    if not held:
        return leaf
    changed = copy.copy(leaf)
    for name, value in held.items():
        object.__setattr__(changed, name, _mapped(value, rows, size, dim))  # a frozen dataclass too
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


def _attributes(value: Any) -> dict[str, Any]:
    """Return what an object holds, if it is a plain container: not a module, a class or a function."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    plain = not isinstance(value, (type, torch.nn.Module, Tensor, str)) and not callable(value)
    return dict(vars(value)) if plain and hasattr(value, "__dict__") else {}


def joined(outputs: list[Any], samples: list[Tensor | None], sizes: list[int], dim: int = 0) -> Any:
    """Join what several parts of a batch returned, in the order of the batch.

    What has one row a sample is joined, a number is averaged over the samples, anything else is the last part's.
    """
    if len(outputs) == 1:
        return outputs[0]
    order = torch.cat([s.cpu() for s in samples if s is not None]).argsort()
    rows = Rows(order)

    def join(*parts: Any) -> Any:
        first = parts[0]
        if isinstance(first, Tensor) and first.dim():
            along = [d for d in dict.fromkeys((dim, 0)) if d < first.dim()]
            for d in along:
                if all(p.shape[d] == n for p, n in zip(parts, sizes, strict=True)):
                    return torch.cat(parts, d).index_select(d, rows.on(first.device))
        elif isinstance(first, float) or (isinstance(first, Tensor) and first.is_floating_point()):
            return sum(p * n for p, n in zip(parts, sizes, strict=True)) / sum(sizes)
        return parts[-1]

    return pytree.tree_map(join, *outputs)
