"""How well does a model do on data that it is not trained on?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from esam.analysis.objective import cross_entropy, evaluating, random_stream_kept

from .distributed import Part, Ranks
from .samples import Batch, on_device, outputs_of, unwrapped

Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one number per sample; their mean is recorded."""

per_sample_cross_entropy = cross_entropy
"""The loss of a task that names none."""
MOST_CLASSES = 1_000
"""Above this, accuracy per class is not recorded."""
PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


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
    device = next(model.parameters()).device
    total, measured, correct, count, labels = 0.0, 0.0, 0.0, 0.0, 0.0
    with evaluating(model), random_stream_kept(model.parameters()):
        for part in parts_of(batches, ranks):
            x, y = on_device(part.x, device), part.y.to(device)
            with autocast(device, precision):
                outputs = outputs_of(model, x)  # even where nothing counts: the others may wait for this rank's shards
                if part.counted:
                    total += float(loss(outputs, y).sum())
            if part.counted == 0:
                continue
            if are_classes(outputs, y):
                correct += int((outputs.argmax(1) == y).sum())
                labels += y.numel()
            if metric is not None:
                measured += float(_each(metric(outputs, y), len(y)).sum())
            count += len(y)
    total, measured, correct, count, labels = ranks.sum([total, measured, correct, count, labels])
    if count == 0:
        raise ValueError("there is nothing to evaluate: the test data are empty")
    accuracy = {"test_accuracy": correct / labels} if labels else {}
    return {"test_loss": total / count, **accuracy, **({"test_metric": measured / count} if metric else {})}


@torch.no_grad()
def class_accuracy(
    model: nn.Module, batches: Iterable[Batch], *, precision: str = "float32", ranks: Ranks | None = None
) -> list[float | None] | None:
    """Return the accuracy on the samples of each class, None for a class without any; over all ``ranks``.

    None in all where a sample has no one class, or there are more than ``MOST_CLASSES``.
    """
    ranks, model = ranks or Ranks(), unwrapped(model)
    device = next(model.parameters()).device
    right, of, without = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), 0
    with evaluating(model), random_stream_kept(model.parameters()):
        for part in parts_of(batches, ranks):
            with autocast(device, precision):
                outputs = outputs_of(model, on_device(part.x, device)).cpu()
            y = part.y.cpu()
            if y.dim() != 1 or not are_classes(outputs, y) or outputs.shape[1] > MOST_CLASSES or int(y.min()) < 0:
                without += 1
                if not ranks.several:  # where there are others, they may wait for this rank's shards
                    break
                continue
            y, chosen = y[: part.counted], outputs.argmax(1)[: part.counted]
            hits, seen = (each.bincount(minlength=outputs.shape[1]) for each in (y[chosen == y], y))
            right, of = (hits, seen) if not len(of) else (right + hits, of + seen)
    if any(ranks.sum([without])):
        return None
    right_in_all, of_all = (ranks.sum(each.tolist()) for each in (right, of))
    return [hits / seen if seen else None for hits, seen in zip(right_in_all, of_all, strict=True)] or None


def parts_of(batches: Iterable[Batch], ranks: Ranks) -> Iterator[Part]:
    """Give this rank's part of each batch; batches that know how to be cut read nothing else."""
    if ranks.several and hasattr(batches, "parts_in_order"):
        yield from batches.parts_in_order(ranks.share)
    else:
        yield from ranks.share.parts(batches)


def are_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Whether the targets are numbers of classes that the outputs score."""
    return outputs.dim() == targets.dim() + 1 and not targets.is_floating_point()


def _each(values: Tensor, count: int) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (count,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"the metric must give one number per sample, a tensor of shape ({count},), got {got}")
    return values
