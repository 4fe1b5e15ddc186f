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
    """Takes the figures of each epoch; a library writes them."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self.config = folder, config
        self.name = f"{config.method}, seed {config.seed}"

    _opened: Any
    """The library's own writer, opened at the first epoch."""
    _log: Callable[[Mapping[str, float], int], None]
    _close: Callable[[], None]

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Keep the figures of an epoch that are numbers."""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        epoch = int(numbers.pop("epoch"))
        self._log({name: value for name, value in numbers.items() if math.isfinite(value)}, epoch)

    def end(self) -> None:
        """Close what was opened."""
        if "_opened" in vars(self):
            self._close()

    def _asked(self) -> dict[str, Any]:
        """Return the configuration on one level, the method's settings by the values that take effect."""
        plain = {name: value for name, value in self.config.as_json().items() if name not in ("settings", "notes")}
        return {**plain, **effective_settings(self.config)}


class TensorBoard(Tracker):
    """Writes events into the run's folder; ``tensorboard --logdir`` shows them."""

    @cached_property
    def _opened(self) -> Any:
        from torch.utils.tensorboard.writer import SummaryWriter

        return SummaryWriter(str(self.folder))

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            self._opened.add_scalar(name, value, epoch)
        self._opened.flush()

    def _close(self) -> None:
        self._opened.close()


class WeightsAndBiases(Tracker):
    """Logs a run of the project ``esam``; offline, in the run's folder, until ``wandb sync`` sends it."""

    @cached_property
    def _opened(self) -> Any:
        import wandb

        return wandb.init(
            project=PROJECT,
            dir=str(self.folder),
            id=self.config.id(),
            name=self.name,
            config=self._asked(),
            mode="offline" if "WANDB_MODE" not in os.environ else None,
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._opened.log(numbers, step=epoch)

    def _close(self) -> None:
        self._opened.finish()


class MLflow(Tracker):
    """Logs a run of the experiment ``esam``; into ``mlflow.db`` in the run's folder. A resumed run is continued."""

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs each table that it makes
        here = f"sqlite:///{(self.folder.absolute() / 'mlflow.db').as_posix()}"
        client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or here)
        known = client.get_experiment_by_name(PROJECT)
        experiment = client.create_experiment(PROJECT) if known is None else known.experiment_id
        mine = client.search_runs([experiment], f"tags.`esam.id` = '{self.config.id()}'")
        if mine:
            return client, mine[0].info.run_id
        run = client.create_run(experiment, run_name=self.name, tags={"esam.id": self.config.id()}).info.run_id
        for key, value in self._asked().items():
            client.log_param(run, key, value)
        return client, run

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        client, run = self._opened
        for name, value in numbers.items():
            client.log_metric(run, name, value, step=epoch)

    def _close(self) -> None:
        client, run = self._opened
        client.set_terminated(run)


TRACKERS: dict[str, tuple[tuple[str, ...], Callable[[Path, Config], Tracker]]] = {
    "tensorboard": (("tensorboard",), TensorBoard),
    "wandb": (("wandb",), WeightsAndBiases),
    "mlflow": (("mlflow", "sqlalchemy", "alembic"), MLflow),
}
"""By the name that the command line has for it: the packages that it needs, and the tracker."""


def find_tracker(name: str, folder: str | Path, config: Config) -> Tracker:
    """Return the tracker of that name; a missing package is reported before the run."""
    packages, build = TRACKERS[name]
    require(*packages, purpose=f"--track {name}")
    return build(Path(folder), config)
