"""How well does a model do on data that it is not trained on?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data.share import Part
from .ranks import Ranks
from .spread import unwrapped

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one number per sample; their mean is told."""

PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def per_sample_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


def as_pair(batch: Any) -> Batch:
    """Return a batch as inputs and targets."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        got = f" of {len(batch)}" if isinstance(batch, (tuple, list, dict)) else ""
        raise ValueError(
            f"data must give pairs (inputs, targets), got a {type(batch).__name__}{got}; pair them in the Dataset, or "
            "in the collate_fn of a DataLoader"
        )
    return batch[0], batch[1]


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Compute in that precision inside the block; float32 leaves everything as it is."""
    dtype = PRECISIONS[precision]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Loss = per_sample_cross_entropy,
    *,
    precision: str = "float32",
    metric: Metric | None = None,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """Return test loss, accuracy where the targets are classes, and the mean of the metric where one is given.

    In eval mode; the model's modes and the random stream come back as they were. Several ``ranks`` take a part of each
    batch and add up what they counted: no sample counts twice, and the figures are the same on all of them.
    """
    ranks, model = ranks or Ranks(), unwrapped(model)
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    device = next(model.parameters()).device
    total, measured, correct, count, labels = 0.0, 0.0, 0.0, 0.0, 0.0
    try:
        # a DataLoader draws a seed whenever it starts: to look at the model more often must not change it
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
            for part in parts_of(batches, ranks):
                x, y = part.x.to(device), part.y.to(device)
                with autocast(device, precision):
                    outputs = model(x)  # even where nothing counts: the others may wait for this rank's shards
                    if part.counted:
                        total += float(loss(outputs, y).sum())
                if part.counted == 0:
                    continue
                if outputs.dim() == y.dim() + 1 and not y.is_floating_point():
                    correct += int((outputs.argmax(1) == y).sum())
                    labels += y.numel()
                if metric is not None:
                    measured += float(_each(metric(outputs, y), len(y)).sum())
                count += len(y)
    finally:
        for module, training in modes:
            module.training = training
    total, measured, correct, count, labels = ranks.sum([total, measured, correct, count, labels])
    if count == 0:
        raise ValueError("there is nothing to evaluate: the test data are empty")
    accuracy = {"test_accuracy": correct / labels} if labels else {}
    return {"test_loss": total / count, **accuracy, **({"test_metric": measured / count} if metric else {})}


def parts_of(batches: Iterable[Batch], ranks: Ranks) -> Iterator[Part]:
    """Give this rank's part of each batch; batches that know how to be cut read nothing else."""
    if ranks.several and hasattr(batches, "parts_in_order"):
        yield from batches.parts_in_order(ranks.share)
    else:
        yield from ranks.share.parts(batches)


def _each(values: Tensor, count: int) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (count,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"the metric must give one number per sample, a tensor of shape ({count},), got {got}")
    return values
