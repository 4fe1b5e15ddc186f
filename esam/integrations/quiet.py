"""How does a pass leave no trace in logs and metrics? The samples of a later pass have been counted in the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def quiet(module: nn.Module) -> Iterator[None]:
    """Log nothing in this block, and leave metrics as they were: their samples have been counted."""
    metrics = [_MetricState(metric) for metric in module.modules() if hasattr(metric, "_update_count")]
    with replaced(module, "log", lambda *_, **__: None):
        try:
            yield
        finally:
            for metric in metrics:
                metric.put_back()


@contextmanager
def replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Shadow an attribute of one module in this block."""
    attributes = vars(module)
    before, had = attributes.get(name), name in attributes
    attributes[name] = value
    try:
        yield
    finally:
        if had:
            attributes[name] = before
        else:
            del attributes[name]


class _MetricState:
    """What a torchmetrics metric has counted: plain attributes, tensors and lists, changed in place or replaced."""

    def __init__(self, metric: nn.Module) -> None:
        self._attributes = vars(metric)
        self._saved = dict(self._attributes)
        self._tensors = [(held, held.clone()) for held in self._saved.values() if isinstance(held, Tensor)]
        self._lists = [(held, list(held)) for held in self._saved.values() if isinstance(held, list)]

    def put_back(self) -> None:
        self._attributes.update(self._saved)
        with torch.no_grad():
            for tensor, value in self._tensors:
                tensor.copy_(value)
        for held, values in self._lists:
            held[:] = values
