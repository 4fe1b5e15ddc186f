"""How fast is each method's step? All methods of a column timed in turn, in several processes; every round is kept."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from esam.optim import METHODS
from esam.train.models import build_model
from esam.train.record import environment

from .hyperparameters import FIVE, Column, Scale
from .jobs import Job, training, untrained
from .store import Store

WARM_UP = 3


def timing_prefix(column: Column) -> str:
    """Return how the names of a column's timings begin."""
    return f"timing/{'-'.join(column).lower().replace('/', '')}/"


def steps_of(column: Column, scale: Scale, *, study: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the steps that are timed on a column: a method and its settings by name."""
    found = {method: (method, dict(scale.config(column, method, 0).settings)) for method in FIVE}
    if study:
        for name, setting in (("esam-swp", "beta"), ("esam-sds", "gamma")):
            for share in scale.shares:
                changed = scale.config(column, name, 0, **{setting: share})
                found[f"{name} {share:g}"] = (name, dict(changed.settings))
    return found


@dataclass(frozen=True)
class Timing(Job):
    """One process that times the steps of a column in turn."""

    column: Column
    study: bool = False

    @property
    def alone(self) -> bool:
        """Each in a process of its own."""
        return True

    def do(self, store: Store, scale: Scale) -> None:
        """Time so many rounds, in each of them every step once, in random order."""
        config = scale.columns[self.column]
        torch.set_num_threads(config.threads or 1)
        device = "cuda" if torch.cuda.is_available() and config.device != "cpu" else "cpu"
        steps = {
            name: _step(scale, self.column, method, settings, device)
            for name, (method, settings) in steps_of(self.column, scale, study=self.study).items()
        }
        clock = _clock(device)
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(-WARM_UP, scale.rounds):
            for name in random.Random(number).sample(list(steps), len(steps)):
                start = clock()
                steps[name]()
                if number >= 0:
                    seconds[name].append(clock() - start)
        about = {"environment": environment(device), "batch": config.batch_size, "model": config.model}
        rounds = [{"step": name, "seconds": [float(f"{s:.4g}") for s in found]} for name, found in seconds.items()]
        store.write(f"{self.name}.jsonl", [about, *rounds])


def timings(scale: Scale, column: Column, *, study: bool = False) -> list[Job]:
    """Return a column's timings, one a process."""
    return [Timing(f"{timing_prefix(column)}process{n}", column, study) for n in range(scale.processes)]


def _step(scale: Scale, column: Column, method: str, settings: dict[str, Any], device: str) -> Callable[[], object]:
    config = scale.columns[column]
    torch.manual_seed(0)
    if scale.real:
        classes = 1000 if column[1] == "ImageNet" else 10
        x = torch.randn(config.batch_size, 3, config.size or 32, config.size or 32)
        y = torch.randint(0, classes, (config.batch_size,))
        net = build_model(config.model, classes=classes, size=x.shape[-1])
    else:
        run = training(scale, column, "base", 0)
        net, (images, labels) = untrained(run)
        x, y = images[: config.batch_size], labels[: config.batch_size]
    net, x, y = net.to(device).train(), x.to(device), y.to(device)
    base = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    if method == "base":

        def plain() -> None:
            base.zero_grad()
            F.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
            base.step()

        return plain
    optimizer = METHODS[method](base, net, seed=0, **settings)

    def closure(keep: Any) -> torch.Tensor:
        return F.cross_entropy(net(x[keep]), y[keep], reduction="none")

    return lambda: optimizer.step(closure, batch_size=len(y))


def _clock(device: str) -> Callable[[], float]:
    if device == "cpu":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronised
