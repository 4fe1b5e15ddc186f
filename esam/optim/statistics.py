"""Which passes move BatchNorm's running statistics?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm


def _moving(model: nn.Module) -> list[_NormBase]:
    """Return the layers whose running statistics would move in a forward pass now."""
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, _NormBase) and layer.training and layer.track_running_stats
    ]


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise by the batch as in training, but leave running statistics and their counter alone.

    Blocks nest and repeat safely: each one restores exactly the flags it found. Layers in eval mode are not touched.
    """
    layers = _moving(model)
    found = [(layer, layer.running_mean, layer.running_var) for layer in layers]
    try:
        for layer in layers:
            layer.track_running_stats = False
            if isinstance(layer, _InstanceNorm):  # it updates the buffers that it has, whatever the flag says
                layer.running_mean = layer.running_var = None
        yield
    finally:
        for layer, mean, variance in found:
            layer.track_running_stats = True
            layer.running_mean, layer.running_var = mean, variance


def copy_statistics(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return pairs (buffer, its value now), for ``restore_statistics``."""
    buffers = [b for layer in _moving(model) for b in layer.buffers(recurse=False)]
    return [(b, b.detach().clone()) for b in buffers]


def restore_statistics(copies: list[tuple[Tensor, Tensor]]) -> None:
    """Put the statistics back to the values that ``copy_statistics`` saw."""
    with torch.no_grad():
        for buffer, value in copies:
            buffer.copy_(value)
