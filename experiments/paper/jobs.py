"""What has to be measured, and how does it get done? Jobs by name, each resumable at any moment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from esam.files import write_atomically
from esam.optim import METHODS
from esam.runs.plan import CONFIG_NAME, PlannedRun
from esam.runs.pool import Processes, run_all
from esam.train import Config, Task

from . import probe
from .data import DRAWN
from .hyperparameters import CIFAR4, Column, Scale, slug
from .store import EPOCHS, RECORD, Store

SECONDS = {
    "resnet8": 1.05e-4, "wrn10-1": 1.1e-4, "pyramidnet8": 2.1e-4, "resnet14": 2.5e-4, "resnet20": 3.7e-4,
    "experiments.paper.data:small_vit": 2.4e-4,
}  # fmt: skip
"""Of a pass of one image on one core, about: from an epoch of each."""


def pass_hours(config: Config) -> float:
    """Return the hours of a pass of one image on one core, where a forward is one and a backward two."""
    return SECONDS.get(config.model, 1e-4) / 3600


@dataclass(frozen=True)
class Job:
    """One measurement, by its name in the store."""

    name: str

    def done(self, store: Store) -> bool:
        """Whether it has been made."""
        return store.lines(f"{self.name}.jsonl") is not None

    def do(self, store: Store, scale: Scale) -> None:
        """Make it, or go on with it, and put it into the store."""
        raise NotImplementedError

    def hours(self, scale: Scale) -> float:
        """Return the hours of one core that it takes, about."""
        raise NotImplementedError


@dataclass(frozen=True)
class Training(Job):
    """A run, by its configuration: its record and its last weights; what its steps saw, where it is probed."""

    config: Config
    probed: bool = False
    """Whether the losses of every step are kept, and each epoch is probed (A.2, A.3); the training is the same."""

    def done(self, store: Store) -> bool:
        """Whether its record has an end, also one where it diverged."""
        lines = store.lines(f"{self.name}/{RECORD}")
        return bool(lines) and lines[-1].get("kind") == "end"  # type: ignore[index]

    def do(self, store: Store, scale: Scale) -> None:
        """Train."""
        from esam.train import run

        look = probe.Observer(store, f"{self.name}/{EPOCHS}", self.config, scale) if self.probed else None
        run(self.config, store.folder / self.name, observe=look)

    def hours(self, scale: Scale) -> float:
        """Return the hours of its passes, and of its probes."""
        units = METHODS[self.config.method].units(dict(self.config.settings))
        images = DRAWN[self.config.data.split(":")[-1].split("_seed")[0]]
        return (
            pass_hours(self.config) * (units + 6 * self.probed * scale.probed_batches / 8) * images * self.config.epochs
        )


def training(scale: Scale, column: Column, method: str, seed: int, **changes: Any) -> Training:
    """Return the run of a method on a column; equal runs have equal names."""
    config, usual = scale.config(column, method, seed, **changes), scale.config(column, method, seed)
    known = {**vars(usual), **usual.settings}
    held = "-held-out" if changes.pop("held_out", False) else ""
    other = "".join(f"-{name}{value:g}" for name, value in sorted(changes.items()) if value != known.get(name))
    probed = method == "esam" and column in CIFAR4 and seed < scale.few and not other and not held
    return Training(f"train/{slug(column)}/{method}{other}{held}-seed{seed}", config, probed)


def load_trained(store: Store, scale: Scale, run: Training) -> tuple[nn.Module, Any]:
    """Return a run's net with its last weights, in eval mode, and its training images and labels.

    Weights are not committed: where they are not here, the run is trained again.
    """
    from esam.train.loaded_run import run_weights
    from esam.train.record import read_record
    from esam.train.task import find_factory

    torch.set_num_threads(run.config.threads or 1)
    task: Task = find_factory(run.config.data)()
    net, folder = build_net(run.config, task), store.folder / run.name
    if not (folder / RECORD).exists() or read_record(folder / RECORD).end is None:
        run.do(store, scale)
    net.load_state_dict(run_weights(folder)[1])
    return net.eval(), task.train


def build_net(config: Config, task: Task) -> nn.Module:
    """Return a run's net before training."""
    from esam.train.models import build_model
    from esam.train.task import make_model

    if ":" in config.model:
        return make_model(config.model, task)
    assert task.classes is not None
    _, channels, size, _ = task.train[0].shape
    return build_model(config.model, classes=len(task.classes), channels=channels, size=size)


@dataclass(frozen=True)
class Queued(PlannedRun):
    """A job as esam's pool takes it: its name in a folder, where a worker process reads it."""

    scale: str = ""
    out: str = ""

    @property
    def ended(self) -> bool:
        """Whether it is done: those that are have not been queued."""
        return False

    def prepare(self) -> None:
        """Write down which job it is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        order = {"job": self.label, "scale": self.scale, "out": self.out}
        write_atomically(self.folder / CONFIG_NAME, json.dumps(order).encode())


def that_fit(at_once: int, gigabytes: float) -> int:
    """Return how many processes of this size may run at a time: at most so many, at least one."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return max(1, min(at_once, int(0.85 * memory / gigabytes)))


def work_through(jobs: Sequence[Job], store: Store, scale: Scale, *, at_once: int, fresh: bool = False) -> int:
    """Do every job that is not done, in order, so many at a time; return how many failed.

    A process does one job after the other, or one only where they are to be ``fresh``, and ends with this one. What is
    done is kept, and the same call goes on with the rest.
    """
    missing = {job.name: job for job in jobs if not job.done(store)}
    config, out = next(iter(scale.columns.values())), str(store.folder.parent.absolute())
    worker = "experiments.paper.worker"
    queued = [Queued(config, store.folder / name, worker, name, scale.name, out) for name in missing]

    def watch() -> None:
        for name in [name for name, job in missing.items() if job.done(store)]:
            del missing[name]
            print(f"{time.strftime('%H:%M:%S')} done {name} ({len(missing)} left)", flush=True)

    try:
        with Processes(at_once, reuse=not fresh) as processes:
            run_all(queued, processes, watch, poll=0.5)
    except RuntimeError as error:  # after the others have ended
        print(error, flush=True)
    return len(missing)
