"""What does a run's record say first, and what last?"""

from __future__ import annotations

import sys
from typing import Any

import torch

from esam.optim import SharpnessAware

from .config import Config, find_method
from .environment import environment
from .facts import Facts
from .resume import Progress


def first_line(config: Config, optimizer: SharpnessAware, facts: Facts, device: torch.device) -> dict[str, Any]:
    """Return what a record says at its beginning: what was asked for, what takes effect, on which data, and where."""
    row = find_method(config.method)
    plain = (str, int, float, tuple, type(None))
    base = {name: value for name, value in optimizer.param_groups[0].items() if isinstance(value, plain)}
    return {
        "id": config.id(),
        "name": row.named(type(optimizer.base).__name__),
        "method": config.method,
        "seed": config.seed,
        "config": config.as_json(),
        "effective": {"base": base, "method": row.effective(config.settings)},
        "data": facts,
        "environment": environment(str(device)),
    }


def divergence(config: Config, progress: Progress) -> str:
    """Say where the loss ceased to be finite, and what to change."""
    settings = find_method(config.method).effective(config.settings)
    radius = f" or rho ({settings['rho']:g})" if "rho" in settings else ""
    return f"the loss was not finite in epoch {progress.epoch}; lower lr ({config.lr:g}){radius}"


def results(
    progress: Progress, last: dict[str, Any], trained: dict[str, float], device: torch.device
) -> dict[str, Any]:
    """Return what a record says at its end."""
    known = "test_accuracy" in trained  # else the targets are no classes
    return {
        "test_accuracy": {"last": last.get("test_accuracy"), "best": progress.best if known else None},
        "test_loss": last.get("test_loss"),
        **({"test_metric": last["test_metric"]} if last.get("test_metric") is not None else {}),
        "train_loss": trained["test_loss"],
        "train_accuracy": trained.get("test_accuracy"),
        "images_per_second": progress.images / progress.seconds if progress.seconds else None,
        "seconds": progress.seconds,
        "cpu_seconds": progress.cpu_seconds,
        "peak_memory": _peak_memory(device),
        "forwards": progress.forwards,
        "backwards": progress.backwards,
    }


def _peak_memory(device: torch.device) -> int | None:
    """Return the highest memory in use, in bytes: the accelerator's, or this process's; None where it is not told."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
