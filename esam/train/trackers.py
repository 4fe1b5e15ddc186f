"""How do a run's figures reach TensorBoard, Weights & Biases or MLflow? By their own libraries, each an extra.

Everything stays on this machine, in the run's folder, unless the library's own environment variables say otherwise
(WANDB_MODE=online, MLFLOW_TRACKING_URI). Nothing is written before the first epoch.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from esam.extras import require

from .config import Config, effective_settings

PROJECT = "esam"

Log = Callable[[Mapping[str, float], int], None]
"""Takes the figures of an epoch by name, and its number."""
Opened = tuple[Log, Callable[[], None]]
"""What logs, and what closes it."""


class Tracker:
    """Takes the figures of each epoch, and opens a library's writer at the first."""

    def __init__(self, start: Callable[[Path, Config], Opened], folder: Path, config: Config) -> None:
        self._start, self._folder, self._config = start, folder, config
        self._opened: Opened | None = None

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Keep the figures of an epoch that are numbers."""
        if self._opened is None:
            self._opened = self._start(self._folder, self._config)
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        epoch = int(numbers.pop("epoch"))
        self._opened[0]({name: value for name, value in numbers.items() if math.isfinite(value)}, epoch)

    def end(self) -> None:
        """Close what was opened."""
        if self._opened is not None:
            self._opened[1]()


def _tensorboard(folder: Path, config: Config) -> Opened:
    """Write events into the run's folder; ``tensorboard --logdir`` shows them."""
    from torch.utils.tensorboard.writer import SummaryWriter

    writer = SummaryWriter(str(folder))

    def log(numbers: Mapping[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()

    return log, writer.close


def _wandb(folder: Path, config: Config) -> Opened:
    """Log a run of the project ``esam``; offline, in the run's folder, until ``wandb sync`` sends it."""
    import wandb

    run = wandb.init(
        project=PROJECT,
        dir=str(folder),
        id=config.id(),
        name=_name(config),
        config=_flat(config),
        mode="offline" if "WANDB_MODE" not in os.environ else None,
        resume="allow",
        settings=wandb.Settings(silent=True, console="off"),
    )
    return lambda numbers, epoch: run.log(dict(numbers), step=epoch), run.finish


def _mlflow(folder: Path, config: Config) -> Opened:
    """Log a run of the experiment ``esam``; into ``mlflow.db`` in the run's folder. A resumed run is continued."""
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs each table that it makes
    here = f"sqlite:///{(folder.absolute() / 'mlflow.db').as_posix()}"
    client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or here)
    known = client.get_experiment_by_name(PROJECT)
    experiment = client.create_experiment(PROJECT) if known is None else known.experiment_id
    begun = client.search_runs([experiment], f"tags.`esam.id` = '{config.id()}'")
    if begun:
        run = begun[0].info.run_id
    else:
        run = client.create_run(experiment, run_name=_name(config), tags={"esam.id": config.id()}).info.run_id
        for key, value in _flat(config).items():
            client.log_param(run, key, value)

    def log(numbers: Mapping[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            client.log_metric(run, name, value, step=epoch)

    return log, lambda: client.set_terminated(run)


def _name(config: Config) -> str:
    return f"{config.method}, seed {config.seed}"


def _flat(config: Config) -> dict[str, Any]:
    """Return the configuration on one level, the method's settings by the values that take effect."""
    plain = {name: value for name, value in config.as_json().items() if name not in ("settings", "notes")}
    return {**plain, **effective_settings(config)}


TRACKERS: dict[str, tuple[tuple[str, ...], Callable[[Path, Config], Opened]]] = {
    "tensorboard": (("tensorboard",), _tensorboard),
    "wandb": (("wandb",), _wandb),
    "mlflow": (("mlflow", "sqlalchemy", "alembic"), _mlflow),
}
"""By the name that the command line has for it: the packages that it needs, and what starts it."""


def find_tracker(name: str, folder: str | Path, config: Config) -> Tracker:
    """Return the tracker of that name; a missing package is reported before the run."""
    packages, start = TRACKERS[name]
    require(*packages, purpose=f"--track {name}")
    return Tracker(start, Path(folder), config)
