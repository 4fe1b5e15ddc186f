"""How do a run's figures reach TensorBoard, Weights & Biases or MLflow? By their own libraries, each an extra.

Everything stays on this machine, in the run's folder, unless the library's own environment variables say otherwise
(WANDB_MODE=online, MLFLOW_TRACKING_URI). Nothing is written before the first epoch.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esam.extras import require
from esam.optim import SharpnessAware
from esam.optim.gradients import Gradients
from esam.optim.monitor import FIRST, FirstSteps

from .config import Config, effective_settings

PROJECT = "esam"
Opened = tuple[Callable[[dict[str, float], int], Any], Callable[[], Any]]
"""What a library logs the figures of an epoch with, and what closes it."""


class StepValues(FirstSteps):
    """Collects what the steps of an epoch did, for trackers: made for an optimizer, it is that one's monitor.

    ``esam/radius`` is the mean of ||eps||, ``esam/cosine`` that of the cosine between eps and the gradient stepped by
    (for SAM: between the gradients at theta and at theta + eps), and ``esam/overhead`` the passes so far over the
    base's, a backward pass counted twice.
    """

    def __init__(self, optimizer: SharpnessAware) -> None:
        super().__init__(optimizer)
        self._values: list[Tensor] = []
        self._eps: Gradients | None = None
        optimizer.monitor = self

    def saw_eps(self, weights: Sequence[Tensor], eps: Gradients) -> None:
        """Keep a perturbation until its step is over."""
        if self.steps < FIRST:
            super().saw_eps(weights, eps)
        self._eps = eps if eps.tensors else None

    def saw_kept(self, kept: int, size: int) -> None:
        """Note how many samples are kept, in the first steps."""
        if self.steps < FIRST:
            super().saw_kept(kept, size)

    def stepped(self) -> None:
        """Note radius and cosine of a step that was perturbed; nothing is read back yet."""
        optimizer, eps, self._eps = self.optimizer, self._eps, None
        if eps is not None:
            every = optimizer.parameters()
            reached = [(n, every[n].grad) for n in eps.index if every[n].grad is not None]
            taken = eps.like([n for n, _ in reached], optimizer.ranks.local([gradient for _, gradient in reached]))
            radius = eps.norm()
            self._values.append(torch.stack([radius, (eps.dot(taken) / (radius * taken.norm())).to(radius)]))
        super().stepped()
        optimizer.monitor = self  # which the last of the first steps has replaced

    def read(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the values of an epoch, whose metrics these are, and begin anew."""
        passes = metrics["forwards"] + 2 * metrics["backwards"]
        found = {"esam/overhead": passes / (3 * metrics["epoch"])}
        pairs = torch.stack(self._values).tolist() if self._values else []
        self._values = []
        if known := [pair for pair in pairs if all(map(math.isfinite, pair))]:
            found["esam/radius"], found["esam/cosine"] = map(statistics.fmean, zip(*known, strict=True))
        return found


class Tracker:
    """Gives the figures of each epoch to a library, which is opened at the first; a missing package is refused now."""

    def __init__(self, name: str, folder: Path, config: Config) -> None:
        self._open, packages = TRACKERS[name]
        require(*packages, purpose=f"--track {name}")
        self._arguments = folder, config
        self._opened: Opened | None = None

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Keep the figures of an epoch that are finite numbers."""
        if self._opened is None:
            self._opened = self._open(*self._arguments)
        numbers = {n: v for n, v in metrics.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        self._opened[0]({name: value for name, value in numbers.items() if name != "epoch"}, metrics["epoch"])

    def end(self) -> None:
        """Close what was opened."""
        if self._opened is not None:
            self._opened[1]()


def tensorboard(folder: Path, config: Config) -> Opened:
    """Write events into the run's folder; ``tensorboard --logdir`` shows them."""
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: Any = SummaryWriter(str(folder))

    def log(numbers: dict[str, float], epoch: int) -> None:
        for figure, value in numbers.items():
            writer.add_scalar(figure, value, epoch)
        writer.flush()

    return log, writer.close


def wandb(folder: Path, config: Config) -> Opened:
    """Log a run of the project ``esam``; offline, in the run's folder, until ``wandb sync`` sends it."""
    import wandb

    run = wandb.init(
        project=PROJECT,
        dir=str(folder),
        mode=None if "WANDB_MODE" in os.environ else "offline",
        id=config.id(),
        name=f"{config.method}, seed {config.seed}",
        config=_settings(config),
        resume="allow",
        settings=wandb.Settings(silent=True, console="off"),
    )
    return run.log, run.finish


def mlflow(folder: Path, config: Config) -> Opened:
    """Log a run of the experiment ``esam``; into ``mlflow.db`` in the run's folder. A resumed run is continued."""
    import mlflow

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs each table that it makes
    here = f"sqlite:///{(folder.absolute() / 'mlflow.db').as_posix()}"
    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or here)
    mlflow.set_experiment(PROJECT)
    known = mlflow.search_runs(filter_string=f"tags.`esam.id` = '{config.id()}'", output_format="list")
    if known:
        mlflow.start_run(known[0].info.run_id)
    else:
        mlflow.start_run(run_name=f"{config.method}, seed {config.seed}", tags={"esam.id": config.id()})
        mlflow.log_params(_settings(config))
    return mlflow.log_metrics, mlflow.end_run


def _settings(config: Config) -> dict[str, Any]:
    """Return the configuration on one level, the method's settings by the values that take effect."""
    plain = {name: value for name, value in config.as_json().items() if name not in ("settings", "notes")}
    return {**plain, **effective_settings(config)}


TRACKERS: dict[str, tuple[Callable[[Path, Config], Opened], tuple[str, ...]]] = {
    "tensorboard": (tensorboard, ("tensorboard",)),
    "wandb": (wandb, ("wandb",)),
    "mlflow": (mlflow, ("mlflow", "sqlalchemy", "alembic")),
}
"""By the name that the command line has for it: what opens it, and the packages that it needs."""
