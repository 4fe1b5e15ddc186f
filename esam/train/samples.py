"""What do samples hold, how does a model take them, and which of them are drawn?"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from esam.optim import take

from .distributed import unwrapped

Inputs = Any
"""A tensor, or a mapping of tensors with a row for each sample."""
Batch = tuple[Inputs, Tensor]
Samples = tuple[Inputs, Tensor] | Dataset[Any]
"""Inputs (a tensor, or tensors by name) and targets, row by row; or a map-style Dataset of such pairs."""
TARGETS = ("labels", "label", "targets", "target", "y")
"""What the targets are called in a batch that is one mapping; the first that is there is taken."""
HELD_OUT_SHARE = 0.2


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


def leaves_of(sample: Any) -> list[Any]:
    """Return what a sample or a batch holds, however deep."""
    if isinstance(sample, Mapping):
        sample = list(sample.values())
    return [each for part in sample for each in leaves_of(part)] if isinstance(sample, (tuple, list)) else [sample]


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
    by_name = False
    if isinstance(inputs, Mapping):
        arguments = inspect.signature(unwrapped(model).forward).parameters
        by_name = any(name in arguments for name in inputs)
    outputs = model(**inputs) if by_name else model(inputs)
    return outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)


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
    return Subset(samples, rows.tolist())


def known_targets(samples: Samples) -> Tensor | None:
    """Return all targets where no sample must be read for them: of tensors, or of a Dataset with ``labels``."""
    targets = samples[1] if isinstance(samples, tuple) else getattr(samples, "labels", None)
    return targets if isinstance(targets, Tensor) else None


def are_labels(targets: Tensor | None) -> TypeGuard[Tensor]:
    """Whether each sample has one class."""
    return targets is not None and targets.dim() == 1 and not targets.is_floating_point()


def class_labels(samples: Samples) -> Tensor:
    """Return the targets as classes; refuse what is no class."""
    targets = known_targets(samples)
    if targets is None:
        targets = torch.stack([torch.as_tensor(row_of(samples, row)[1]) for row in range(sample_count(samples))])
    if not are_labels(targets):
        raise ValueError(
            "train_size, label_noise and the models that esam can name need one class a sample, got targets of shape "
            f"{tuple(targets.shape)} and type {targets.dtype}; leave them out"
        )
    return targets.long()


def generator_for(*key: str | int) -> torch.Generator:
    """Give a fresh CPU generator that depends on ``key`` alone, never on the global generator or on earlier draws.

    The key is hashed because neighbouring seeds, such as (seed 0, epoch 1) and (seed 1, epoch 0), must not meet.
    """
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def flip_labels(labels: Tensor, share: float, *, classes: int, seed: int = 0) -> Tensor:
    """Make exactly ``round(share * N)`` labels wrong, each any other class, uniformly; the same ones for a seed."""
    generator = generator_for("label noise", seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    # A step of 1..classes-1 round the circle of classes reaches each other class equally often, and never its own.
    steps = torch.randint(1, max(classes, 2), chosen.shape, generator=generator)
    noisy = labels.clone()
    noisy[chosen] = (labels[chosen] + steps) % classes
    return noisy


def balanced_subset(labels: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """Pick ``count`` samples at random with all classes equally often; gives their positions, ascending.

    A class with too few samples gives all it has and the others fill up. For one seed, smaller subsets lie inside
    larger ones.
    """
    if not 1 <= count <= len(labels):
        raise ValueError(f"train_size must be in 1..{len(labels)}, the number of training images, got {count}")
    shuffled, rank = rank_within_class(labels, generator_for("subset", seed))
    return shuffled[rank.argsort(stable=True)][:count].sort().values


def held_out(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Hold out a fifth of the samples, every class in proportion; gives the positions kept and those held out.

    The draw is fixed: a test set must not change with the seed of a run.
    """
    if len(labels) < 2:
        raise ValueError(f"holding out test images takes at least 2 images, got {len(labels)}")
    shuffled, rank = rank_within_class(labels, generator_for("held out"))
    counts = labels.bincount()[labels[shuffled]]
    by_depth = shuffled[((rank + 0.5) / counts).argsort(stable=True)]
    count = max(1, round(HELD_OUT_SHARE * len(labels)))
    return by_depth[count:].sort().values, by_depth[:count].sort().values


def rank_within_class(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shuffle the samples; gives their positions in that order and how many of its class came before each."""
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = labels[shuffled].argsort(stable=True)
    counts = labels.bincount()
    first = counts.cumsum(0) - counts
    rank = torch.empty_like(shuffled)
    rank[by_class] = torch.arange(len(labels)) - first[labels[shuffled][by_class]]
    return shuffled, rank
