"""How do a run's figures reach TensorBoard, Weights & Biases or MLflow? By their own libraries, each an extra.

Everything stays on this machine, in the run's folder, unless the library's own environment variables say otherwise
(WANDB_MODE=online, MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from esam.extras import require

from .config import Config
from .effective import effective_settings

PROJECT = "esam"


class Tracker(Protocol):
    """Takes a run's figures; nothing is written before the first."""

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Keep the figures of an epoch."""

    def end(self) -> None:
        """Close what was opened."""


class TensorBoard:
    """Writes events into the run's folder; ``tensorboard --logdir`` shows them."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder = folder
        self._writer: Any = None

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Write the figures of an epoch."""
        if self._writer is None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        for name, value in _numbers(metrics).items():
            self._writer.add_scalar(name, value, metrics["epoch"])
        self._writer.flush()

    def end(self) -> None:
        """Close the file of events."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """Logs a run of the project ``esam``; offline, in the run's folder, until ``wandb sync`` sends it."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder, self._config = folder, config
        self._run: Any = None

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Log the figures of an epoch."""
        if self._run is None:
            import wandb

            self._run = wandb.init(
                project=PROJECT,
                dir=str(self._folder),
                id=self._config.id(),
                name=f"{self._config.method}, seed {self._config.seed}",
                config=_asked(self._config),
                mode="offline" if "WANDB_MODE" not in os.environ else None,
                resume="allow",
                settings=wandb.Settings(silent=True, console="off"),
            )
        self._run.log(_numbers(metrics), step=metrics["epoch"])

    def end(self) -> None:
        """Write everything that is still in memory."""
        if self._run is not None:
            self._run.finish()


class MLflow:
    """Logs a run of the experiment ``esam``; into ``mlflow.db`` in the run's folder. A resumed run goes on."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder, self._config = folder, config
        self._client: Any = None
        self._run = ""

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Log the figures of an epoch."""
        if self._client is None:
            self._open()
        for name, value in _numbers(metrics).items():
            self._client.log_metric(self._run, name, value, step=metrics["epoch"])

    def end(self) -> None:
        """Say that the run has ended."""
        if self._client is not None:
            self._client.set_terminated(self._run)

    def _open(self) -> None:
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells each table that it makes
        here = f"sqlite:///{(self._folder.absolute() / 'mlflow.db').as_posix()}"
        place = os.environ.get("MLFLOW_TRACKING_URI") or here
        client = MlflowClient(tracking_uri=place)
        known = client.get_experiment_by_name(PROJECT)
        experiment = client.create_experiment(PROJECT) if known is None else known.experiment_id
        mine = client.search_runs([experiment], f"tags.`esam.id` = '{self._config.id()}'")
        if mine:
            self._run = mine[0].info.run_id
        else:
            name = f"{self._config.method}, seed {self._config.seed}"
            run = client.create_run(experiment, run_name=name, tags={"esam.id": self._config.id()})
            self._run = run.info.run_id
            for key, value in _asked(self._config).items():
                client.log_param(self._run, key, value)
        self._client = client


TRACKERS: dict[str, tuple[tuple[str, ...], Callable[[Path, Config], Tracker]]] = {
    "tensorboard": (("tensorboard",), TensorBoard),
    "wandb": (("wandb",), WeightsAndBiases),
    "mlflow": (("mlflow", "sqlalchemy", "alembic"), MLflow),
}
"""By the name that the command line has for it: the packages that it needs, and the tracker."""


def find_tracker(name: str, folder: str | Path, config: Config) -> Tracker:
    """Return the tracker of that name; a package that is missing is told before the run."""
    packages, build = TRACKERS[name]
    require(*packages, purpose=f"--track {name}")
    return build(Path(folder), config)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if name != "epoch" and isinstance(value, (int, float)) and math.isfinite(value)
    }


def _asked(config: Config) -> dict[str, Any]:
    """Return the configuration on one level, the method's settings by the values that take effect."""
    plain = {name: value for name, value in config.as_json().items() if name not in ("settings", "notes")}
    return {**plain, **effective_settings(config)}
