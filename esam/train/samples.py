"""What do samples and batches hold, and how does a model take them? Tensors, or tensors by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

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


def bytes_of(inputs: Inputs) -> int:
    """Return how much memory the inputs take."""
    parts = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    return sum(part.nbytes for part in parts if isinstance(part, Tensor))


def rows_of(inputs: Inputs, rows: slice | Tensor) -> Inputs:
    """Return the samples at these rows."""
    if not isinstance(inputs, Tensor):
        return take(inputs, rows)
    if isinstance(rows, Tensor) and inputs.dim() == 4 and inputs.is_contiguous(memory_format=torch.channels_last):
        # Turned this way each image is one run of bytes, and gathering is one memory copy per image.
        return inputs.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return inputs[rows]


def outputs_of(model: nn.Module, inputs: Inputs) -> Any:
    """Return what a model gives: tensors by name go to the arguments of those names, where it has them.

    Of an answer that holds ``logits`` beside other things, as those of transformers do, the logits are taken.
    """
    outputs = model(**inputs) if _by_name(model, inputs) else model(inputs)
    return outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel: a forward of it exchanges nothing."""
    return model.module if isinstance(model, DistributedDataParallel) else model


class InputsAdapter(nn.Module):
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


Samples = tuple[Inputs, Tensor] | Dataset[Any]
"""Inputs (a tensor, or tensors by name) and targets, row by row; or a map-style Dataset of such pairs."""


class SomeRows(Dataset[Any]):
    """Some rows of a Dataset, with other labels where they are given."""

    def __init__(self, whole: Dataset[Any], rows: Tensor, labels: Tensor | None = None) -> None:
        self._whole, self._rows, self._labels = whole, rows, labels

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> tuple[Any, Any]:
        inputs, target = as_pair(self._whole[int(self._rows[position])])
        return inputs, target if self._labels is None else self._labels[position]


def check_samples(name: str, samples: Any) -> None:
    """Refuse what is no samples, or none."""
    if isinstance(samples, tuple):
        if len(samples) != 2 or not isinstance(samples[1], Tensor) or not (counts := _input_counts(samples[0])):
            raise ValueError(
                f"a Task's {name} must be a pair of tensors (inputs, targets), or of a dict of tensors and a tensor, "
                f"got {samples!r:.80}"
            )
        if counts != {len(samples[1])}:
            numbers = " or ".join(map(str, sorted(counts)))
            raise ValueError(f"{name} has {numbers} inputs and {len(samples[1])} targets; give one for each")
    elif not (hasattr(samples, "__getitem__") and hasattr(samples, "__len__")):
        raise ValueError(
            f"a Task's {name} must be a pair of tensors (inputs, targets) or a Dataset with a length, got "
            f"{type(samples).__name__}"
        )
    if sample_count(samples) == 0:
        raise ValueError(f"a Task's {name} must hold a sample at least, got none")


def _input_counts(inputs: Any) -> set[int]:
    """Return how many rows the inputs have; nothing where they are no tensors."""
    parts = list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]
    whole = all(isinstance(part, Tensor) and part.dim() for part in parts)
    return {len(part) for part in parts} if whole else set()


def sample_count(samples: Samples) -> int:
    """Return how many samples there are."""
    return len(samples[1]) if isinstance(samples, tuple) else len(samples)  # type: ignore[arg-type]


def row_of(samples: Samples, row: int) -> tuple[Any, Any]:
    """Return inputs and target of one sample."""
    if isinstance(samples, tuple):
        inputs = samples[0]
        return inputs[row] if isinstance(inputs, Tensor) else rows_of(inputs, slice(row, row + 1)), samples[1][row]
    return as_pair(samples[row])


def taken_rows(samples: Samples, rows: Tensor) -> Samples:
    """Return the samples at these rows."""
    if isinstance(samples, tuple):
        return rows_of(samples[0], rows), samples[1][rows]
    return SomeRows(samples, rows)


def with_labels(samples: Samples, labels: Tensor) -> Samples:
    """Return the samples with other labels."""
    if isinstance(samples, tuple):
        return samples[0], labels
    return SomeRows(samples, torch.arange(len(labels)), labels)


def known_targets(samples: Samples) -> Tensor | None:
    """Return all targets where no sample must be read for them: of tensors, or of a Dataset with ``labels``."""
    targets = samples[1] if isinstance(samples, tuple) else getattr(samples, "labels", None)
    return targets if isinstance(targets, Tensor) else None


def class_labels(name: str, samples: Samples) -> Tensor:
    """Return the targets as classes; refuse what is no class."""
    targets = known_targets(samples)
    if targets is None:
        targets = torch.stack([torch.as_tensor(row_of(samples, row)[1]) for row in range(sample_count(samples))])
    if targets.dim() != 1 or targets.is_floating_point():
        raise ValueError(
            f"{name}: train_size, label_noise and the models that esam can name need one class a sample, "
            f"got targets of shape {tuple(targets.shape)} and type {targets.dtype}; leave them out"
        )
    return targets.long()
