"""Which passes move what a model keeps beside its weights: running statistics, codebooks, queues, power iterations?

The first alone. A buffer may be changed in place or replaced; both are put back. What a model keeps in plain attributes
is out of reach: register it as a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


class Buffers:
    """The buffers of a model as they are now, to be put back."""

    def __init__(self, model: nn.Module) -> None:
        self._saved = [
            (layer._buffers, name, tensor, _copy(tensor), _place(tensor))
            for layer in _layers(model)
            for name, tensor in layer._buffers.items()
        ]

    def put_back(self) -> None:
        """Give every buffer the tensor and the values that it had."""
        with torch.no_grad():
            for owner, name, tensor, value, place in self._saved:
                owner[name] = tensor
                if tensor is not None and value is not None:
                    if _place(tensor) == place:
                        tensor.copy_(value)
                    else:  # its .data was set, perhaps to the caller's own batch: nothing is written there
                        tensor.data = value


def _copy(tensor: Tensor | None) -> Tensor | None:
    """Return a copy; None for what no pass can write in place: nothing, not built yet, or expanded."""
    if tensor is None or is_lazy(tensor):
        return None
    if tensor.layout == torch.strided and any(
        n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return None
    return tensor.detach().clone()


def _place(tensor: Tensor | None) -> tuple[int, torch.Size] | None:
    """Return where the values lie."""
    if tensor is None or is_lazy(tensor) or tensor.layout != torch.strided:
        return None
    return tensor.data_ptr(), tensor.shape


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Let the passes in this block move no buffer."""
    saved = Buffers(model)
    try:
        yield
    finally:
        saved.put_back()


def _layers(model: nn.Module) -> set[nn.Module]:
    """Return the layers of a model; every step asks, and a stack is three times as fast as ``model.modules()``."""
    seen, rest = {model}, [model]
    while rest:
        for child in rest.pop()._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                rest.append(child)
    return seen


def has_batch_statistics(model: nn.Module) -> bool:
    """Tell whether some layer normalises by the samples at hand: it cannot by a single one."""
    return any(
        isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or layer.running_mean is None)
        for layer in model.modules()
    )
