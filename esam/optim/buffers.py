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


Owner = dict[str, Tensor | None]
"""The buffers of one layer, by name."""


class SavedBuffers:
    """A copy of a model's buffers, written anew by each ``save`` into the same memory; nothing where there are none."""

    def __init__(self) -> None:
        self._slots: list[tuple[Owner, str, Tensor]] = []
        self._places: list[tuple[Any, ...]] = []
        self._live: list[Tensor] = []
        """The buffers that a pass can write to in place, and their copies."""
        self._copies: list[Tensor] = []
        self._live_places: list[tuple[Any, ...]] = []
        self._large = False
        self._constant: dict[int, tuple[Any, ...]] = {}

    def save(self, owners: list[Owner]) -> None:
        """Copy the buffers as they are now."""
        slots = [(owner, name, t) for owner in owners for name, t in owner.items() if t is not None]
        places = _places([tensor for _, _, tensor in slots])
        if places != self._places or self._large:
            self._choose([tensor for _, _, tensor in slots])
        else:
            _copy(self._copies, self._live)
        self._slots, self._places = slots, places

    def put_back(self) -> None:
        """Give every buffer the tensor and the values that it had."""
        for owner, name, tensor in self._slots:
            if owner.get(name) is not tensor:
                owner[name] = tensor
        if not self._live:
            return
        if _places(self._live) == self._live_places:
            _copy(self._live, self._copies)
            return
        with torch.no_grad():
            for tensor, copy, place in zip(self._live, self._copies, self._live_places, strict=True):
                if _places([tensor]) == [place]:
                    tensor.copy_(copy)
                else:  # its .data was set, perhaps to the caller's own batch: nothing is written there
                    tensor.data = copy.clone()

    def _choose(self, tensors: list[Tensor]) -> None:
        """Copy what a pass can write to; a large buffer is compared with its copy of the step before, once."""
        for tensor, copy, place in zip(self._live, self._copies, self._live_places, strict=True):
            if tensor.numel() > _LARGE and _places([tensor]) == [place] and id(tensor) not in self._constant:
                self._constant[id(tensor)] = (_version(tensor), place) if torch.equal(tensor, copy) else ()
        live = [t for t in tensors if _is_writable(t) and (t.numel() <= _LARGE or not self._is_constant(t))]
        places = _places(live)
        if places == self._live_places:
            _copy(self._copies, live)
        else:
            self._copies = [tensor.detach().clone() for tensor in live]
        self._live, self._live_places = live, places
        self._large = any(tensor.numel() > _LARGE for tensor in tensors if not is_lazy(tensor))

    def _is_constant(self, tensor: Tensor) -> bool:
        known = self._constant.get(id(tensor))
        return bool(known) and known == (_version(tensor), *_places([tensor]))


def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    if not to:
        return
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


def _places(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    """Return the tensors, each with where its values lie; every step asks."""
    return [
        (id(t), t.data_ptr(), t.shape) if type(t) is Tensor and t.layout is torch.strided else _place(t)
        for t in tensors
    ]


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Return the same of a tensor of another kind, which may have no address."""
    if tensor.layout is not torch.strided or is_lazy(tensor):
        return (id(tensor),)
    return (id(tensor), tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def buffer_owners(model: nn.Module) -> list[Owner]:
    """Return the buffers of each layer that has some; every step asks, and ``model.modules()`` is slow."""
    layers: list[Any] = [model]
    seen: set[nn.Module] = set()
    for layer in layers:  # which grows
        if layer is not None and layer._modules and layer not in seen:
            seen.add(layer)
            layers.extend(layer._modules.values())
    return [layer._buffers for layer in layers if layer is not None and layer._buffers]


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
        self._saved.save(buffer_owners(self._model))  # as they are now: the block may be entered long after it was made

    def __exit__(self, *_: Any) -> None:
        self._saved.put_back()
