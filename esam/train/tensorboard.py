"""How do a run's figures reach TensorBoard? An extra: pip install torch-esam[tensorboard]."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def event_writer(folder: str | Path) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes an epoch's figures as events into the folder."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise ValueError("TensorBoard is not installed; run: pip install torch-esam[tensorboard]") from error
    writer = SummaryWriter(str(folder))

    def write(metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            if name != "epoch" and isinstance(value, (int, float)):
                writer.add_scalar(name, value, metrics["epoch"])
        writer.flush()

    return write
