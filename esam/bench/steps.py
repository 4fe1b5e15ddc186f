"""How long does one step take, and how many passes? Contenders are timed in turn, on one model and one batch."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esam.optim import METHODS
from esam.report.sheets import Sheet
from esam.train.build import chosen_device
from esam.train.config import MOST_THREADS, did_you_mean, find_method
from esam.train.models import build_model, fastest_memory_format
from esam.train.record import environment

Build = Callable[[nn.Module, Tensor, Tensor], Callable[[], Any]]
"""(model, inputs, labels) -> a function that takes one step."""


@dataclass(frozen=True)
class Bench:
    """A model, a batch, on what, how often."""

    model: str = "resnet18"
    """A name from `esam models`."""
    batch_size: int = 128
    """Samples in a step."""
    size: int = 32
    """Pixels a side."""
    classes: int = 10
    """Outputs of the model."""
    rounds: int = 10
    """Steps of each contender."""
    threads: int = 1
    """CPU threads."""
    device: str = "cpu"
    """cpu, cuda, ..."""

    def check(self) -> Bench:
        """Return what is to be timed if every number is in its range."""
        for name in ("batch_size", "size", "classes", "rounds", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.threads > MOST_THREADS:
            raise ValueError(f"threads must be at most {MOST_THREADS}, got {self.threads}")
        return self


@dataclass(frozen=True)
class Contender:
    """Who is timed, and what its step should cost: a forward pass 1, a backward 1 for inputs and 1 for weights."""

    build: Build
    units: float


def base_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the base that every contender gets."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)


def plain_loop(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """Take the step of an ordinary training loop, without any of this package."""
    optimizer = base_optimizer(model)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


@dataclass(frozen=True)
class Registered:
    """Steps by a method of the registry."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
        """Return the function that takes one step."""
        optimizer = METHODS[self.name](base_optimizer(model), model, **self.settings)

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y, reduction="none")

        return lambda: optimizer.step(loss_of, x, y)


def contender(name: str, settings: dict[str, Any] | None = None) -> Contender:
    """Return a method of the registry, with settings of its own; ``base`` is the base optimizer in an ordinary loop."""
    settings, options = settings or {}, find_method(name).options()
    for key in settings:
        if key not in options:
            raise ValueError(f"{name} has no setting {key!r}.{did_you_mean(key, options)} See esam methods {name}")
    return Contender(plain_loop if name == "base" else Registered(name, settings), METHODS[name].units(settings))


def bench_steps(bench: Bench, contenders: Mapping[str, Contender]) -> dict[str, Any]:
    """Return times, counted passes and ratios.

    Contenders step in turn, so that noise hits all alike. On the CPU with one thread, times are processor time, which
    a busy machine disturbs least; else the clock's.
    """
    chosen_device(bench.check().device)
    torch.set_num_threads(bench.threads)
    steps = {name: prepared(bench, contender.build) for name, contender in contenders.items()}
    # a first step, which also warms up
    rows: dict[str, dict[str, Any]] = {name: _counted(*step, bench.batch_size) for name, step in steps.items()}
    times = seconds_in_turn(
        {name: step for name, (_, step) in steps.items()}, bench.rounds, clock_of(bench.device, bench.threads)
    )
    for name, row in rows.items():
        row |= {"seconds": spread(times[name]), "units": contenders[name].units}
        if "base" in times:
            row["time / base"] = _compared(times[name], times["base"])
    return {"bench": asdict(bench), "contenders": rows, "environment": environment(bench.device)}


def seconds_in_turn(
    steps: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Return the seconds of each step in every round, in each of which all are taken once, in random order."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name in random.Random(number).sample(list(steps), len(steps)):
            before()
            start = clock()
            steps[name]()
            times[name].append(clock() - start)
    return times


def prepared(bench: Bench, build: Build) -> tuple[nn.Module, Callable[[], Any]]:
    """Return a fresh model, the same for all, and the function that steps it on one fixed batch."""
    torch.manual_seed(0)
    model = build_model(bench.model, classes=bench.classes, channels=3, size=bench.size)
    layout = fastest_memory_format(model)
    model = model.to(device=bench.device, memory_format=layout).train()  # type: ignore[call-overload]
    x = torch.randn(bench.batch_size, 3, bench.size, bench.size, device=bench.device)
    y = torch.randint(0, bench.classes, (bench.batch_size,), device=bench.device)
    return model, build(model, x.contiguous(memory_format=layout), y)


def steps_sheet(result: dict[str, Any]) -> Sheet:
    """Return the result as a table: times and ratios with their intervals, counted passes and cost, memory."""
    rows: dict[str, dict[str, Any]] = result["contenders"]
    ratios = ["time / base", "total / base"] if any("time / base" in row for row in rows.values()) else []
    titles = ["step by", "ms", *ratios, "forward", "backward", "units", "MiB"]
    lines = []
    for name, row in rows.items():
        milliseconds = 1e3 * row["seconds"]["median"]
        cells = [name, f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.2g}"]
        if ratios:
            cells.append("{median:.2f} ({interval[0]:.2f}-{interval[1]:.2f})".format(**row["time / base"]))
            cells.append("{of totals:.2f}".format(**row["time / base"]))
        cells += [f"{row[key]:.3g}" for key in ("forwards", "backwards", "units")]
        lines.append((*cells, f"{row['memory'] / 2**20:.0f}" if "memory" in row else ""))
    title = "{model}, batch {batch_size}, {threads} thread(s), {device}".format(**result["bench"])
    return Sheet(title, tuple(titles), tuple(lines))


def _counted(model: nn.Module, step: Callable[[], Any], batch: int) -> dict[str, float]:
    """Take one step and count its passes, in batches, by hooks on the model; rows without a gradient do not count."""
    forwards: list[int] = []
    backwards: dict[int, int] = {}

    def after(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        number = len(forwards)
        forwards.append(len(output))

        def back(gradient: Tensor) -> None:
            backwards[number] = int(gradient.flatten(1).any(1).sum())

        if output.requires_grad:
            output.register_hook(back)  # type: ignore[no-untyped-call]

    handle = model.register_forward_hook(after)
    try:
        step()
    finally:
        handle.remove()
    return {"forwards": sum(forwards) / batch, "backwards": sum(backwards.values()) / batch}


def _compared(mine: list[float], theirs: list[float]) -> dict[str, Any]:
    """Return the ratios round by round, and that of the totals: fair to a step whose cost is drawn anew each time."""
    return {**spread([a / b for a, b in zip(mine, theirs, strict=True)]), "of totals": sum(mine) / sum(theirs)}


def clock_of(name: str, threads: int) -> Callable[[], float]:
    """Return what times a step on a device: processor time on one CPU thread, else the clock's."""
    device = torch.device(name)
    if device.type == "cpu":
        return time.process_time if threads == 1 else time.perf_counter

    def synchronised() -> float:
        torch.get_device_module(device).synchronize(device)
        return time.perf_counter()

    return synchronised


def spread(values: list[float]) -> dict[str, Any]:
    """Return the median, and an interval for it: the order statistics that hold it with 95 % where n allows."""
    ordered, n = sorted(values), len(values)
    reach = round(0.98 * n**0.5)
    low, high = max(0, n // 2 - reach), min(n - 1, (n - 1) // 2 + reach)
    return {"median": statistics.median(ordered), "interval": [ordered[low], ordered[high]], "n": n}
