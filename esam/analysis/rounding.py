"""What is left of the accuracy when the weights are rounded to few bits? Flat minima should lose less."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .objective import Batch, ModelObjective, Parameters

BITS = (32, 8, 4)
"""32: as they are, which the others are held against."""


def rounded(parameters: Parameters, bits: int) -> dict[str, Tensor]:
    """Round weights to the nearest of 2^bits - 1 even levels, each output channel scaled by its own largest weight.

    Tensors of one dimension (biases, norms) stay as they are, as is usual where weights are quantised; so does
    everything with 32 bits or more.

    >>> rounded({"w": torch.tensor([[0.4, 1.0, -0.7]])}, bits=2)
    {'w': tensor([[ 0.,  1., -1.]])}
    """
    if bits < 2:
        raise ValueError(f"bits must be 2 or more, got {bits!r}")
    levels = 2 ** (bits - 1) - 1
    return {name: p.detach() if bits >= 32 else _rounded(p.detach(), levels) for name, p in parameters.items()}


def rounded_accuracy(model: nn.Module, batches: Iterable[Batch], bits: Iterable[int] = BITS) -> dict[str, float]:
    """Return the accuracy over the batches with weights of so many bits, by their number; the model is only read.

    Targets below 0 do not count, as the -100 that torch's losses ignore.
    """
    misses = ModelObjective(model, batches, _misses)
    theta, known = misses.parameters, torch.cat([y.flatten() >= 0 for _, y in misses.batches])
    with torch.no_grad():
        return {str(each): 1 - float(misses(rounded(theta, each)) / known.double().mean()) for each in bits}


def _misses(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs.argmax(1) != targets) & (targets >= 0)).double()


def _rounded(weight: Tensor, levels: int) -> Tensor:
    if weight.dim() < 2:
        return weight
    largest = weight.flatten(1).abs().amax(1).reshape(-1, *[1] * (weight.dim() - 1))
    step = torch.where(largest > 0, largest / levels, torch.ones_like(largest))
    return (weight / step).round() * step
