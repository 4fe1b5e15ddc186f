"""What does a run write down as it goes, and at its end?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .checkpoint import Checkpoint
from .config import Config
from .outcome import divergence, results
from .place import open_record
from .record import read_record
from .resume import Progress
from .weights import WeightsKeeper

Measure = Callable[[nn.Module, Any, torch.device], Any]


class Diary:
    """The record of a run, and its best and last weights where they are kept; on rank 0 alone."""

    def __init__(
        self, path: Path, config: Config, checkpoint: Checkpoint, first: Mapping[str, Any], *, keep_weights: bool
    ) -> None:
        self._config, self._writer = config, open_record(path, config, checkpoint, first)
        so_far = read_record(path)
        self._last: dict[str, Any] = dict(so_far.epochs[-1]) if so_far.epochs else {}
        self._keeper = WeightsKeeper(so_far) if keep_weights else None

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Write an epoch's line."""
        self._writer.epoch(**metrics)
        self._last.update(metrics)

    def keep(self, metrics: Mapping[str, Any], model: nn.Module) -> None:
        """Keep the weights if no epoch was better."""
        if self._keeper is not None:
            self._keeper.epoch(metrics, model)

    def end(
        self,
        progress: Progress,
        trained: dict[str, float],
        class_accuracy: list[float | None] | None,
        model: nn.Module,
        data: Any,
        device: torch.device,
        measures: Mapping[str, Measure],
    ) -> None:
        """Write the last line, with what is measured of the model."""
        told = results(progress, self._last, trained, device)
        if progress.diverged:
            self._writer.end(status="diverged", error=divergence(self._config, progress), **told)
            return
        if self._keeper is not None:
            self._keeper.end(self._last, model)
        here = next(model.parameters()).device  # of a sharded model, a copy on the CPU
        taken = {name: measure(model, data, here) for name, measure in measures.items()}
        self._writer.end(**told, **taken, class_accuracy=class_accuracy)
