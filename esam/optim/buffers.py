"""Which passes move what a model keeps beside its weights: running statistics, codebooks, queues, power iterations?

The first alone. A buffer may be changed in place or replaced; both are put back. What a model keeps in plain attributes
is out of reach: register it as a buffer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_LARGE = 2**16
"""Elements: larger buffers are compared once, and no longer copied where they turn out to be constant (a mask)."""


class SavedBuffers:
    """A copy of a model's buffers, written anew by each ``save`` into the same memory; nothing where there are none."""

    def __init__(self) -> None:
        self._slots: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
        self._live: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._places: list[tuple[Any, ...]] = []
        self._large = False
        self._constant: dict[int, tuple[Any, ...]] = {}

    def save(self, model: nn.Module) -> None:
        """Copy the buffers as they are now."""
        self._slots = [
            (layer._buffers, name, tensor)
            for layer in _layers(model)
            if layer._buffers
            for name, tensor in layer._buffers.items()
            if tensor is not None
        ]
        if not self._slots:
            return
        self._find_constants()
        live = [
            tensor
            for _, _, tensor in self._slots
            if _is_writable(tensor) and (tensor.numel() <= _LARGE or not self._is_constant(tensor))
        ]
        places = [_place(tensor) for tensor in live]
        same = places == self._places and all(a is b for a, b in zip(live, self._live, strict=True))
        self._live, self._places = live, places
        if not same:
            self._copies = [tensor.detach().clone() for tensor in live]
            self._large = any(tensor.numel() > _LARGE for tensor in live)
        elif live:
            _copy(self._copies, live)

    def put_back(self) -> None:
        """Give every buffer the tensor and the values that it had."""
        if not self._slots:
            return
        for owner, name, tensor in self._slots:
            if owner.get(name) is not tensor:
                owner[name] = tensor
        if not self._live:
            return
        if [_place(tensor) for tensor in self._live] == self._places:
            _copy(self._live, self._copies)
            return
        with torch.no_grad():
            for tensor, copy, place in zip(self._live, self._copies, self._places, strict=True):
                if _place(tensor) == place:
                    tensor.copy_(copy)
                else:  # its .data was set, perhaps to the caller's own batch: nothing is written there
                    tensor.data = copy.clone()

    def _find_constants(self) -> None:
        """Compare large buffers with their copies of the step before, once each."""
        for tensor, copy, place in zip(self._live, self._copies, self._places, strict=True) if self._large else ():
            if tensor.numel() > _LARGE and _place(tensor) == place and id(tensor) not in self._constant:
                constant = torch.equal(tensor, copy)
                self._constant[id(tensor)] = (_version(tensor), place) if constant else ()

    def _is_constant(self, tensor: Tensor) -> bool:
        known = self._constant.get(id(tensor))
        return bool(known) and known == (_version(tensor), _place(tensor))


def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    mode = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    torch._foreach_copy_(to, values)
    torch._C._set_grad_enabled(mode)


def _is_writable(tensor: Tensor) -> bool:
    """Tell whether a pass can write here in place: not where nothing is built yet, or where it is expanded."""
    if is_lazy(tensor):
        return False
    if tensor.layout == torch.strided and tensor.is_contiguous():
        return True
    return tensor.layout != torch.strided or not any(
        n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Return where the values lie."""
    if tensor.layout != torch.strided:
        return (id(tensor),)
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


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


class kept_buffers:
    """Let the passes in a ``with`` block move no buffer."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._saved = model, SavedBuffers()

    def __enter__(self) -> None:
        self._saved.save(self._model)  # as they are now: the block may be entered long after it was made

    def __exit__(self, *_: Any) -> None:
        self._saved.put_back()
