"""What does a block of code exchange between ranks? Counted below everything: what reaches torch's c10d."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "allreduce_": "sum",
    "allreduce_coalesced_": "sum",
    "_allgather_base_": "gather",
    "allgather_into_tensor_coalesced_": "gather",
    "allgather_": "gather",
    "_reduce_scatter_base_": "scatter",
    "reduce_scatter_tensor_coalesced_": "scatter",
    "broadcast_": "broadcast",
}


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, inside its block, the exchanges of each kind and the bytes that this rank gave to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.sizes: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take down what belongs to c10d; run everything."""
        if func.namespace == "c10d" and (kind := KINDS.get(func._schema.name.split("::")[1])):
            given = args[1] if kind in ("gather", "scatter") else args[0]
            size = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(given))
            self.calls[kind] += 1
            self.bytes[kind] += size
            self.sizes.append((kind, size))
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)
