"""``esam bench``: what a step of each method costs."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from esam.bench.memory import check_measurable, peak_memory
from esam.bench.steps import Bench, bench_steps, contender, steps_sheet
from esam.files import check_writable, write_atomically
from esam.optim import METHODS
from esam.report.sheets import as_text

from .parsing import parse_all, settings_by_method

LEGEND = """\
time: median over the rounds, with a 95 % interval; total: of all rounds.
forward, backward: passes over the batch, counted; units: a forward pass is 1,
a backward 1 for inputs and 1 for weights; MiB: beyond model and batch."""


@dataclass(frozen=True)
class BenchOptions:
    """What a step costs: contenders timed in turn in one run, passes counted, memory in processes of their own."""

    methods: tuple[str, ...] = ()
    """Methods to time, by their names in `esam methods`; all if none is named."""
    set: tuple[str, ...] = ()
    """What differs for a method, as in esam.gamma=0.7."""
    memory: bool = True
    """Measure memory too."""
    out: Path | None = None
    """Where to write the JSON record."""


def bench(arguments: list[str]) -> None:
    """``esam bench``: what a step costs."""
    (options, timed), _ = parse_all("bench", [BenchOptions, Bench], arguments)
    settings = settings_by_method(options.set)
    contenders = {name: contender(name, settings.get(name)) for name in options.methods or METHODS}
    timed.check()
    if options.memory:
        check_measurable(timed)
    if options.out is not None:
        check_writable(options.out)
    result = bench_steps(timed, contenders)
    if options.memory:
        for name, row in result["contenders"].items():
            row["memory"] = peak_memory(timed, contenders[name])
    print(f"{as_text(steps_sheet(result), shutil.get_terminal_size().columns)}\n\n{LEGEND}")
    if options.out is not None:
        write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())
