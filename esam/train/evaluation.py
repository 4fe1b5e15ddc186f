"""How well does a model do on data that it is not trained on?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .inputs import Batch, as_pair, on_device, outputs_of

Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one number per sample; their mean is told."""

MOST_CLASSES = 1_000
"""With more, the accuracy on each is told to nobody."""
PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def per_sample_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


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
) -> dict[str, float]:
    """Return test loss, accuracy where the targets are classes, and the mean of the metric where one is given.

    In eval mode; the model's modes and the random stream come back as they were.
    """
    device = next(model.parameters()).device
    total, measured, correct, count, labels = 0.0, 0.0, 0, 0, 0
    with _looking_at(model):
        for x, y in map(as_pair, batches):
            x, y = on_device(x, device), y.to(device)
            with autocast(device, precision):
                outputs = outputs_of(model, x)
                total += float(loss(outputs, y).sum())
            if _are_classes(outputs, y):
                correct += int((outputs.argmax(1) == y).sum())
                labels += y.numel()
            if metric is not None:
                measured += float(_each(metric(outputs, y), len(y)).sum())
            count += len(y)
    if count == 0:
        raise ValueError("there is nothing to evaluate: the test data are empty")
    accuracy = {"test_accuracy": correct / labels} if labels else {}
    return {"test_loss": total / count, **accuracy, **({"test_metric": measured / count} if metric else {})}


@torch.no_grad()
def class_accuracy(
    model: nn.Module, batches: Iterable[Batch], *, precision: str = "float32"
) -> list[float | None] | None:
    """Return the accuracy on the samples of each class, None for a class without any.

    None in all where a sample has no one class, or there are more than ``MOST_CLASSES``.
    """
    device = next(model.parameters()).device
    right, of = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    with _looking_at(model):
        for x, y in map(as_pair, batches):
            with autocast(device, precision):
                outputs = outputs_of(model, on_device(x, device)).cpu()
            y = y.cpu()
            if y.dim() != 1 or not _are_classes(outputs, y) or outputs.shape[1] > MOST_CLASSES or int(y.min()) < 0:
                return None
            hits, seen = (each.bincount(minlength=outputs.shape[1]) for each in (y[outputs.argmax(1) == y], y))
            right, of = (hits, seen) if not len(of) else (right + hits, of + seen)
    return [hits / seen if seen else None for hits, seen in zip(right.tolist(), of.tolist(), strict=True)] or None


@contextmanager
def _looking_at(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode inside the block; its modes and the random stream come back as they were."""
    modes = [(m, m.training) for m in model.modules()]
    device = next(model.parameters()).device
    model.eval()
    try:
        # a DataLoader draws a seed whenever it starts: to look at the model more often must not change it
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _are_classes(outputs: Tensor, targets: Tensor) -> bool:
    return outputs.dim() == targets.dim() + 1 and not targets.is_floating_point()


def _each(values: Tensor, count: int) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (count,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"the metric must give one number per sample, a tensor of shape ({count},), got {got}")
    return values
