"""What does a batch hold, and how does a model take it? A tensor, or tensors by name, as text models take them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from esam.optim import take

Inputs = Any
"""A tensor, or a mapping of tensors with a row for each sample."""
Batch = tuple[Inputs, Tensor]
TARGETS = ("labels", "label", "targets", "target", "y")
"""What the targets are called in a batch that is one mapping; the first that is there is taken."""


def as_pair(batch: Any) -> Batch:
    """Return a batch as inputs and targets; of a mapping, the targets are what goes by one of their usual names."""
    if isinstance(batch, Mapping):
        name = next((name for name in TARGETS if name in batch), None)
        if name is not None:
            return {key: value for key, value in batch.items() if key != name}, batch[name]
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        got = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        got = f" with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else got
        raise ValueError(
            f"data must give pairs (inputs, targets), or a dict with {' or '.join(TARGETS[:2])}, got a "
            f"{type(batch).__name__}{got}; pair them in the Dataset, or in the collate_fn of a DataLoader"
        )
    return batch[0], batch[1]


def on_device(inputs: Inputs, device: torch.device | str) -> Inputs:
    """Return the inputs on a device; what is no tensor stays as it is."""
    if isinstance(inputs, Mapping):
        return {name: on_device(value, device) for name, value in inputs.items()}
    return inputs.to(device) if isinstance(inputs, Tensor) else inputs


def rows_of(inputs: Inputs, rows: slice | Tensor) -> Inputs:
    """Return the samples at these rows."""
    return inputs[rows] if isinstance(inputs, Tensor) else take(inputs, rows)


def outputs_of(model: nn.Module, inputs: Inputs) -> Any:
    """Return what a model gives: tensors by name go to the arguments of those names, where it has them.

    Of an answer that holds ``logits`` beside other things, as those of transformers do, the logits are taken.
    """
    outputs = model(**inputs) if _by_name(model, inputs) else model(inputs)
    return outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel: a forward of it exchanges nothing."""
    return model.module if isinstance(model, DistributedDataParallel) else model


class Called(nn.Module):
    """A model that is called with the inputs of a batch, whatever they are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Any:
        """Give what the model gives."""
        return outputs_of(self.model, inputs)


def _by_name(model: nn.Module, inputs: Inputs) -> bool:
    if not isinstance(inputs, Mapping):
        return False
    named = inspect.signature(unwrapped(model).forward).parameters
    return any(name in named for name in inputs)
