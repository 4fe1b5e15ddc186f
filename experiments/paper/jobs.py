"""What has to be measured, and how does it get done? Jobs by name, each resumable at any moment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from esam.bench.steps import Registered, clock_of, plain_loop, seconds_in_turn
from esam.runs.plan import Job as PoolJob
from esam.runs.pool import Processes, run_all
from esam.train import Config, Task
from esam.train.build import Parts, build_parts, prepared_model
from esam.train.models import fastest_memory_format
from esam.train.record import environment

from . import probe
from .data import CLASSES, SIDE
from .hyperparameters import CIFAR4, FIVE, Column, Scale, slug
from .store import EPOCHS, RECORD, Store

WARM_UP = 3


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

        made: list[Parts] = []

        def parts(config: Config) -> Parts:
            made.append(build_parts(config))
            return made[0]

        def watch(metrics: dict[str, Any]) -> None:
            observer(metrics["epoch"], made[0].model, made[0].task)

        observer = probe.Observer(store, f"{self.name}/{EPOCHS}", self.config, scale)
        run(self.config, store.folder / self.name, parts=parts, watch=watch if self.probed else None)


def training(scale: Scale, column: Column, method: str, seed: int, **changes: Any) -> Training:
    """Return the run of a method on a column; equal runs have equal names."""
    config, usual = scale.config(column, method, seed, **changes), scale.config(column, method, seed)
    known = {**vars(usual), **usual.settings}
    held = "-held-out" if changes.pop("held_out", False) else ""
    other = "".join(f"-{name}{value:g}" for name, value in sorted(changes.items()) if value != known.get(name))
    probed = method == "esam" and column in CIFAR4 and seed < scale.few and not other and not held
    return Training(f"train/{slug(column)}/{method}{other}{held}-seed{seed}", config, probed)


def trainings(
    scale: Scale, seeds: int, columns: Collection[Column], methods: Collection[str], **changes: Any
) -> list[Training]:
    """Return the runs of methods on columns, seed by seed, so that whole comparisons come first."""
    return [training(scale, c, method, seed, **changes) for seed in range(seeds) for c in columns for method in methods]


@dataclass(frozen=True)
class Timing(Job):
    """One process that times the steps of a column in turn, on random images; ``study``: Figure 3's values, too."""

    column: Column
    process: int
    """Its number, which seeds the masks: what masks differ by is in the interval over processes."""
    study: bool = False

    def steps(self, scale: Scale) -> dict[str, Registered]:
        """Return who is timed, by name."""
        settings = {method: {**scale.config(self.column, method, 0).settings, "seed": self.process} for method in FIVE}
        found = {method: Registered(method, settings[method]) for method in FIVE}
        for method, setting in (("esam-swp", "beta"), ("esam-sds", "gamma")) if self.study else ():
            for share in scale.shares:
                found[f"{method} {share:g}"] = Registered(method, {**settings[method], setting: share})
        return found

    def do(self, store: Store, scale: Scale) -> None:
        """Time so many rounds, in each of them every step once, in random order; every round is kept."""
        config = scale.columns[self.column]
        torch.set_num_threads(config.threads or 1)
        device = "cuda" if torch.cuda.is_available() and config.device != "cpu" else "cpu"
        size = config.size or (32 if scale.real else SIDE)
        classes = 1_000 if scale.real and self.column[1] == "ImageNet" else CLASSES[self.column[1]]
        x, y = torch.randn(config.batch_size, 3, size, size), torch.randint(0, classes, (config.batch_size,))
        task = Task((x, y), (x, y), classes=tuple(map(str, range(classes))))
        steps: dict[str, Callable[[], object]] = {}
        for name, registered in self.steps(scale).items():
            net = prepared_model(config, task, torch.device(device))
            here = x.to(device, memory_format=fastest_memory_format(net))
            steps[name] = (plain_loop if name == "base" else registered)(net, here, y.to(device))
        times = seconds_in_turn(steps, WARM_UP + scale.rounds, clock_of(device, torch.get_num_threads()))
        about = {"environment": environment(device), "batch": config.batch_size, "model": config.model}
        rounds = [
            {"step": name, "seconds": [float(f"{s:.4g}") for s in took[WARM_UP:]]} for name, took in times.items()
        ]
        store.write(f"{self.name}.jsonl", [about, *rounds])


def timing_prefix(column: Column) -> str:
    """Return how the names of a column's timings begin."""
    return f"timing/{slug(column)}/"


def timings(scale: Scale, columns: Collection[Column], studied: Sequence[Column] = ()) -> list[Job]:
    """Return the timings of columns, one a process; of those studied, Figure 3's values with them."""
    processes = range(scale.processes)
    return [Timing(f"{timing_prefix(c)}process{n}", c, n, c in studied) for c in columns for n in processes]


def work_through(jobs: Sequence[Job], store: Store, scale: Scale, *, at_once: int, fresh: bool = False) -> int:
    """Do every job that is not done, in order, so many at a time; return how many failed.

    A process does one job after the other, or one only where they are to be ``fresh``, and ends with this one. What is
    done is kept, and the same call goes on with the rest.
    """
    missing = {job.name: job for job in jobs if not job.done(store)}
    order = {"scale": scale.name, "out": str(store.folder.parent.absolute())}
    worker = "experiments.paper.items"
    queued = [PoolJob(store.folder / name, worker, name, json.dumps({"job": name, **order})) for name in missing]

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
