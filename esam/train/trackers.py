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
from functools import cached_property
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
Log = Callable[[Mapping[str, float], int], None]
"""(figures, epoch) -> written by the library."""
Open = Callable[[Path, Config, str], tuple[Log, Callable[[], Any]]]
"""(folder, configuration, name of the run) -> what writes, and what closes."""


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
    """Takes the figures of each epoch; a library, opened at the first epoch, writes them."""

    def __init__(self, folder: Path, config: Config, open_library: Open) -> None:
        self._folder, self._config, self._open = folder, config, open_library

    @cached_property
    def _opened(self) -> tuple[Log, Callable[[], Any]]:
        return self._open(self._folder, self._config, f"{self._config.method}, seed {self._config.seed}")

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Keep the figures of an epoch that are numbers."""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        epoch, log = int(numbers.pop("epoch")), self._opened[0]
        log({name: value for name, value in numbers.items() if math.isfinite(value)}, epoch)

    def end(self) -> None:
        """Close what was opened."""
        if "_opened" in vars(self):
            self._opened[1]()


def tensorboard(folder: Path, config: Config, name: str) -> tuple[Log, Callable[[], Any]]:
    """Write events into the run's folder; ``tensorboard --logdir`` shows them."""
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: Any = SummaryWriter(str(folder))

    def log(numbers: Mapping[str, float], epoch: int) -> None:
        for figure, value in numbers.items():
            writer.add_scalar(figure, value, epoch)
        writer.flush()

    return log, writer.close


def wandb(folder: Path, config: Config, name: str) -> tuple[Log, Callable[[], Any]]:
    """Log a run of the project ``esam``; offline, in the run's folder, until ``wandb sync`` sends it."""
    import wandb

    mode: Any = None if "WANDB_MODE" in os.environ else "offline"
    quiet = wandb.Settings(silent=True, console="off")
    about: dict[str, Any] = {"id": config.id(), "name": name, "config": _settings(config)}
    run = wandb.init(project=PROJECT, dir=str(folder), mode=mode, resume="allow", settings=quiet, **about)
    return lambda numbers, epoch: run.log(dict(numbers), step=epoch), run.finish


def mlflow(folder: Path, config: Config, name: str) -> tuple[Log, Callable[[], Any]]:
    """Log a run of the experiment ``esam``; into ``mlflow.db`` in the run's folder. A resumed run is continued."""
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs each table that it makes
    here = f"sqlite:///{(folder.absolute() / 'mlflow.db').as_posix()}"
    client: Any = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or here)
    known = client.get_experiment_by_name(PROJECT)
    experiment = client.create_experiment(PROJECT) if known is None else known.experiment_id
    if mine := client.search_runs([experiment], f"tags.`esam.id` = '{config.id()}'"):
        run = mine[0].info.run_id
    else:
        run = client.create_run(experiment, run_name=name, tags={"esam.id": config.id()}).info.run_id
        for key, value in _settings(config).items():
            client.log_param(run, key, value)

    def log(numbers: Mapping[str, float], epoch: int) -> None:
        for figure, value in numbers.items():
            client.log_metric(run, figure, value, step=epoch)

    return log, lambda: client.set_terminated(run)


def _settings(config: Config) -> dict[str, Any]:
    """Return the configuration on one level, the method's settings by the values that take effect."""
    plain = {name: value for name, value in config.as_json().items() if name not in ("settings", "notes")}
    return {**plain, **effective_settings(config)}


TRACKERS: dict[str, tuple[Open, tuple[str, ...]]] = {
    "tensorboard": (tensorboard, ("tensorboard",)),
    "wandb": (wandb, ("wandb",)),
    "mlflow": (mlflow, ("mlflow", "sqlalchemy", "alembic")),
}
"""By the name that the command line has for it: what opens it, and the packages that it needs."""


def find_tracker(name: str, folder: str | Path, config: Config) -> Tracker:
    """Return the tracker of that name; a missing package is reported before the run."""
    open_library, packages = TRACKERS[name]
    require(*packages, purpose=f"--track {name}")
    return Tracker(Path(folder), config, open_library)
