"""What do the samples of a user's own data hold, and which of them are taken?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .inputs import Inputs, as_pair, rows_of

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
            told = " or ".join(map(str, sorted(counts)))
            raise ValueError(f"{name} has {told} inputs and {len(samples[1])} targets; give one for each")
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
    return (rows_of(samples[0], rows), samples[1][rows]) if isinstance(samples, tuple) else SomeRows(samples, rows)


def class_labels(name: str, samples: Samples) -> Tensor:
    """Return the targets as classes; refuse what is no class."""
    if isinstance(samples, tuple):
        targets = samples[1]
    else:
        targets = torch.stack([torch.as_tensor(row_of(samples, row)[1]) for row in range(sample_count(samples))])
    if targets.dim() != 1 or targets.is_floating_point():
        raise ValueError(
            f"{name}: train_size, label_noise and the models that esam can name need one class a sample, "
            f"got targets of shape {tuple(targets.shape)} and type {targets.dtype}; leave them out"
        )
    return targets.long()
