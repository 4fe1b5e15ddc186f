"""How fast is each method's step? All methods of a column timed in turn, in several processes; every round is kept."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from esam.bench.steps import Registered, plain_loop
from esam.train import Task
from esam.train.record import environment

from .data import CLASSES, SIDE
from .hyperparameters import FIVE, Column, Scale, slug
from .jobs import Job, build_net, pass_hours
from .store import Store

WARM_UP = 3


def timing_prefix(column: Column) -> str:
    """Return how the names of a column's timings begin."""
    return f"timing/{slug(column)}/"


@dataclass(frozen=True)
class Timing(Job):
    """One process that times the steps of a column in turn, on random images; ``study``: Figure 3's values, too."""

    column: Column
    study: bool = False

    def steps(self, scale: Scale) -> dict[str, Registered]:
        """Return who is timed, by name."""
        settings = {method: scale.config(self.column, method, 0).settings for method in FIVE}
        found = {method: Registered(method, {**settings[method], "seed": 0}) for method in FIVE}
        for method, setting in (("esam-swp", "beta"), ("esam-sds", "gamma")) if self.study else ():
            for share in scale.shares:
                changed = {**settings[method], setting: share, "seed": 0}
                found[f"{method} {share:g}"] = Registered(method, changed)
        return found

    def do(self, store: Store, scale: Scale) -> None:
        """Time so many rounds, in each of them every step once, in random order."""
        config = scale.columns[self.column]
        torch.set_num_threads(config.threads or 1)
        device = "cuda" if torch.cuda.is_available() and config.device != "cpu" else "cpu"
        size = config.size or (32 if scale.real else SIDE)
        classes = 1_000 if scale.real and self.column[1] == "ImageNet" else CLASSES[self.column[1]]
        x, y = torch.randn(config.batch_size, 3, size, size), torch.randint(0, classes, (config.batch_size,))
        task = Task((x, y), (x, y), classes=tuple(map(str, range(classes))))
        steps: dict[str, Callable[[], object]] = {}
        for name, registered in self.steps(scale).items():
            net = build_net(config, task).to(device).train()
            build = plain_loop if name == "base" else registered
            steps[name] = build(net, x.to(device), y.to(device))
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
        for number in range(-WARM_UP, scale.rounds):
            for name in random.Random(number).sample(list(steps), len(steps)):
                start = clock()
                steps[name]()
                if device == "cuda":
                    torch.cuda.synchronize()
                if number >= 0:
                    seconds[name].append(clock() - start)
        about = {"environment": environment(device), "batch": config.batch_size, "model": config.model}
        rounds = [{"step": name, "seconds": [float(f"{s:.4g}") for s in found]} for name, found in seconds.items()]
        store.write(f"{self.name}.jsonl", [about, *rounds])

    def hours(self, scale: Scale) -> float:
        """Return the hours of all steps, at 5.5 passes a step."""
        config = scale.columns[self.column]
        return pass_hours(config) * config.batch_size * 5.5 * len(self.steps(scale)) * (scale.rounds + WARM_UP)


def timings(scale: Scale, column: Column, *, study: bool = False) -> list[Job]:
    """Return a column's timings, one a process."""
    return [Timing(f"{timing_prefix(column)}process{n}", column, study) for n in range(scale.processes)]
