"""How well does a model do on data that it is not trained on?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from esam.analysis.objective import cross_entropy, evaluating, random_stream_kept

from .batches import parts_of
from .distributed import Ranks, unwrapped
from .samples import Batch, on_device, outputs_of

Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one number per sample; their mean is recorded."""

per_sample_cross_entropy = cross_entropy
"""The loss of a task that names none."""
MOST_CLASSES = 1_000
"""Above this, accuracy per class is not recorded."""
PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Compute in that precision inside the block."""
    return torch.autocast(device.type, dtype=PRECISIONS[precision], enabled=precision != "float32")


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Loss = per_sample_cross_entropy,
    *,
    precision: str = "float32",
    metric: Metric | None = None,
    ranks: Ranks | None = None,
    by_class: bool = False,
) -> dict[str, Any]:
    """Return test loss, accuracy where the targets are classes, and the mean of the metric where one is given.

    In eval mode; the model's modes and the random stream come back as they were. Several ``ranks`` take a part of each
    batch and add up what they counted: no sample counts twice, and the figures are the same on all of them. With
    ``by_class`` there is a ``class_accuracy`` too: one number a class, None for a class without samples; None in all
    where a sample has no one class, or there are more than ``MOST_CLASSES``.
    """
    ranks, model = ranks or Ranks(), unwrapped(model)
    device = next(model.parameters()).device
    total = measured = correct = count = labels = classed = scored = 0.0
    of_classes: list[Tensor] = []  # how many of each class are right, and how many there are
    with evaluating(model), random_stream_kept(model.parameters()):
        for x, y, rows in parts_of(batches, ranks):
            if rows.weight == 0:
                continue
            x, y = on_device(x, device), y.to(device)
            with autocast(device, precision):
                outputs = outputs_of(model, x)
                total += float(loss(outputs, y).sum())
            if are_classes(outputs, y):
                scored += len(y)
                right = outputs.argmax(1) == y
                correct += int(right.sum())
                labels += int((y >= 0).sum())  # targets below 0 are ignored, as the -100 of torch's losses
                if by_class and y.dim() == 1 and outputs.shape[1] <= MOST_CLASSES and int(y.min()) >= 0:
                    counts = [each.bincount(minlength=outputs.shape[1]) for each in (y[right], y)]
                    of_classes.append(torch.stack(counts).cpu())
                    classed += len(y)
            if metric is not None:
                values = metric(outputs, y)
                if not isinstance(values, Tensor) or values.shape != y.shape[:1]:
                    got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                    raise ValueError(f"the metric must give one number per sample, shape ({len(y)},), got {got}")
                measured += float(values.sum())
            count += len(y)
    sums = ranks.sum([total, measured, correct, count, labels, classed, scored])
    total, measured, correct, count, labels, classed, scored = sums
    if count == 0:
        raise ValueError("there is nothing to evaluate: the test data are empty")
    figures: dict[str, Any] = {"test_loss": total / count}
    if labels and scored == count:
        figures["test_accuracy"] = correct / labels
    if metric is not None:
        figures["test_metric"] = measured / count
    if by_class:
        known = [counts for each in ranks.all_of(of_classes) for counts in each]
        pairs = torch.stack(known).sum(0).T.tolist() if classed == count else []
        figures["class_accuracy"] = [right / all_of_it if all_of_it else None for right, all_of_it in pairs] or None
    return figures


def are_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Whether the targets are numbers of classes that the outputs score; a single output scores none."""
    if outputs.dim() != targets.dim() + 1 or targets.is_floating_point():
        return False
    return outputs.shape[1] > 1 and bool((targets < outputs.shape[1]).all())
