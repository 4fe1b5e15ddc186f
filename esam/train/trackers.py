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
Opened = tuple[Callable[[dict[str, float], int], Any], Callable[[], Any]]
"""What a library logs the figures of an epoch with, and what closes it."""


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
