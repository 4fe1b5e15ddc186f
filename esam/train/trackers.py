"""How do a run's figures reach TensorBoard, Weights & Biases or MLflow? By their own libraries, each an extra.

Everything stays on this machine, in the run's folder, unless the library's own environment variables say otherwise
(WANDB_MODE=online, MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from .config import Config, find_method

PROJECT = "esam"
Log = Callable[[dict[str, float], int], Any]
"""Keeps the figures of an epoch."""


@contextmanager
def tensorboard(folder: Path, config: Config) -> Iterator[Log]:
    """Write events into the run's folder; ``tensorboard --logdir`` shows them."""
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: Any = SummaryWriter(str(folder))

    def log(figures: dict[str, float], epoch: int) -> None:
        for figure, value in figures.items():
            writer.add_scalar(figure, value, epoch)
        writer.flush()

    with writer:
        yield log


@contextmanager
def wandb(folder: Path, config: Config) -> Iterator[Log]:
    """Log a run of the project ``esam``; offline, in the run's folder, until ``wandb sync`` sends it."""
    import wandb

    with wandb.init(
        project=PROJECT,
        dir=str(folder),
        mode=None if "WANDB_MODE" in os.environ else "offline",
        id=config.id(),
        name=f"{config.method}, seed {config.seed}",
        config=_settings(config),
        resume="allow",
        settings=wandb.Settings(silent=True, console="off"),
    ) as run:
        yield run.log


@contextmanager
def mlflow(folder: Path, config: Config) -> Iterator[Log]:
    """Log a run of the experiment ``esam``; into ``mlflow.db`` in the run's folder. A resumed run is continued."""
    import mlflow

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs each table that it makes
    here = f"sqlite:///{(folder.absolute() / 'mlflow.db').as_posix()}"
    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or here)
    mlflow.set_experiment(PROJECT)
    known = mlflow.search_runs(filter_string=f"tags.`esam.id` = '{config.id()}'", output_format="list")
    name = f"{config.method}, seed {config.seed}"
    with mlflow.start_run(known[0].info.run_id if known else None, run_name=name, tags={"esam.id": config.id()}):
        if not known:
            mlflow.log_params(_settings(config))
        yield mlflow.log_metrics


def _settings(config: Config) -> dict[str, Any]:
    """Return the configuration on one level, the method's settings by the values that take effect."""
    every = {**config.as_json(), **find_method(config.method).effective(config.settings)}
    return {name: value for name, value in every.items() if value is not None and name not in ("settings", "notes")}


TRACKERS: dict[str, tuple[Callable[[Path, Config], AbstractContextManager[Log]], tuple[str, ...]]] = {
    "tensorboard": (tensorboard, ("tensorboard",)),
    "wandb": (wandb, ("wandb",)),
    "mlflow": (mlflow, ("mlflow", "sqlalchemy", "alembic")),
}
"""By the name that the command line has for it: what opens it, and the packages that it needs."""
