"""Which passes move BatchNorm's running statistics?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm


def moving_layers(model: nn.Module) -> list[_NormBase]:
    """Return the layers whose running statistics would move in a forward pass now."""
    found: list[_NormBase] = []
    rest = [model]  # each step walks the model: a stack is twice as fast as model.modules()
    while rest:
        layer = rest.pop()
        if isinstance(layer, _NormBase) and layer.training and layer.track_running_stats:
            found.append(layer)
        rest.extend(child for child in layer._modules.values() if child is not None)
    return found


@contextmanager
def frozen_statistics(model: nn.Module | list[_NormBase]) -> Iterator[None]:
    """Normalise by the batch as in training, but leave running statistics and their counter alone.

    Blocks nest and repeat safely: each one restores exactly what it found. Layers in eval mode are not touched.
    ``moving_layers`` of a model may stand for the model, to spare a walk through it.
    """
    layers = moving_layers(model) if isinstance(model, nn.Module) else model
    found = [(layer, layer.track_running_stats, layer.running_mean, layer.running_var) for layer in layers]
    try:
        for layer in layers:
            layer.track_running_stats = False
            if isinstance(layer, _InstanceNorm):  # it updates the buffers that it has, whatever the flag says
                layer.running_mean = layer.running_var = None
        yield
    finally:
        for layer, flag, mean, variance in found:
            layer.track_running_stats, layer.running_mean, layer.running_var = flag, mean, variance


def copy_statistics(layers: list[_NormBase]) -> list[tuple[Tensor, Tensor]]:
    """Return pairs (buffer, its value now), for ``restore_statistics``."""
    return [(b, b.detach().clone()) for layer in layers for b in layer.buffers(recurse=False)]


def restore_statistics(copies: list[tuple[Tensor, Tensor]]) -> None:
    """Put the statistics back to the values that ``copy_statistics`` saw."""
    with torch.no_grad():
        for buffer, value in copies:
            buffer.copy_(value)
