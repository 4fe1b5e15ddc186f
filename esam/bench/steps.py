"""How long does one step take, how many passes, how much memory?"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from esam.report.sheets import Sheet
from esam.train.build import chosen_device
from esam.train.models import build_model, fastest_memory_format
from esam.train.record import environment

from .config import Bench
from .contenders import Build, Contender


def bench_steps(
    bench: Bench, contenders: Mapping[str, Contender], *, on_round: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """Return times, counted passes and ratios.

    Every contender steps once a round, in random order, so that noise hits all alike. On the CPU with one thread, times
    are processor time, which a busy machine disturbs least; else the clock's.
    """
    chosen_device(bench.check().device)
    torch.set_num_threads(bench.threads)
    steps = {name: prepared(bench, one.build) for name, one in contenders.items()}
    passes = {
        name: _counted(*step, bench.batch_size) for name, step in steps.items()
    }  # a first step, which also warms up
    clock = _clock(bench)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(bench.rounds):
        for name in random.Random(number).sample(list(steps), len(steps)):
            start = clock()
            steps[name][1]()
            times[name].append(clock() - start)
        on_round(number + 1)
    base = ["base"] if "base" in times else []
    rows = {
        name: {
            "seconds": spread(times[name]),
            **{f"time / {other}": _compared(times[name], times[other]) for other in base},
            **passes[name],
            "units": contenders[name].units,
        }
        for name in steps
    }
    return {"bench": asdict(bench), "contenders": rows, "environment": environment(bench.device)}


def prepared(bench: Bench, build: Build) -> tuple[nn.Module, Callable[[], Any]]:
    """Return a fresh model, the same for all, and the function that steps it on one fixed batch."""
    torch.manual_seed(0)
    channels = 3
    model = build_model(bench.model, classes=bench.classes, channels=channels, size=bench.size)
    layout = fastest_memory_format(model)
    model = model.to(device=bench.device, memory_format=layout).train()  # type: ignore[call-overload]
    x = torch.randn(bench.batch_size, channels, bench.size, bench.size, device=bench.device)
    y = torch.randint(0, bench.classes, (bench.batch_size,), device=bench.device)
    return model, build(model, x.contiguous(memory_format=layout), y)


def steps_sheet(result: dict[str, Any]) -> Sheet:
    """Return the result as a table: times and ratios with their intervals, counted passes and cost, memory."""
    rows: dict[str, dict[str, Any]] = result["contenders"]
    ratios = ["time / base"] if any("time / base" in row for row in rows.values()) else []
    titles = ["step by", "ms", *ratios, *(f"total{key[4:]}" for key in ratios), "forward", "backward", "units", "MiB"]
    lines = []
    for name, row in rows.items():
        milliseconds = 1e3 * row["seconds"]["median"]
        cells = [name, f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.2g}"]
        cells += ["{median:.2f} ({interval[0]:.2f}-{interval[1]:.2f})".format(**row[key]) for key in ratios]
        cells += ["{of totals:.2f}".format(**row[key]) for key in ratios]
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


def _clock(bench: Bench) -> Callable[[], float]:
    device = torch.device(bench.device)
    if device.type == "cpu":
        return time.process_time if bench.threads == 1 else time.perf_counter

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
