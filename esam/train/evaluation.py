"""How well does a model do on data that it is not trained on?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .inputs import Batch, as_pair, on_device, outputs_of

Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one number per sample; their mean is told."""

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
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    device = next(model.parameters()).device
    total, measured, correct, count, labels = 0.0, 0.0, 0, 0, 0
    try:
        # a DataLoader draws a seed whenever it starts: to look at the model more often must not change it
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
            for x, y in map(as_pair, batches):
                x, y = on_device(x, device), y.to(device)
                with autocast(device, precision):
                    outputs = outputs_of(model, x)
                    total += float(loss(outputs, y).sum())
                if outputs.dim() == y.dim() + 1 and not y.is_floating_point():
                    correct += int((outputs.argmax(1) == y).sum())
                    labels += y.numel()
                if metric is not None:
                    measured += float(_each(metric(outputs, y), len(y)).sum())
                count += len(y)
    finally:
        for module, training in modes:
            module.training = training
    if count == 0:
        raise ValueError("there is nothing to evaluate: the test data are empty")
    accuracy = {"test_accuracy": correct / labels} if labels else {}
    return {"test_loss": total / count, **accuracy, **({"test_metric": measured / count} if metric else {})}


def _each(values: Tensor, count: int) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (count,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"the metric must give one number per sample, a tensor of shape ({count},), got {got}")
    return values
