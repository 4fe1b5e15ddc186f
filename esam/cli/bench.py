"""``esam bench step``: what a step of each method costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from esam.bench.config import Bench
from esam.report.sheets import Form

from .parsing import parse

USAGE = """\
usage: esam bench step [OPTIONS]

What a step of each method costs: time, passes, memory. `esam bench step --help` lists the options.
"""

LEGEND = """\
time: median over the rounds, with a 95 % interval; total: of all rounds.
forward, backward: passes over the batch, counted; units: a forward pass is 1,
a backward 1 for inputs and 1 for weights; MiB: beyond model and batch."""


@dataclass(frozen=True)
class BenchOptions:
    """What a step costs: contenders timed in turn in one run, passes counted, memory in processes of their own."""

    bench: tyro.conf.OmitArgPrefixes[Bench]
    contenders: tuple[str, ...] = ("base", "sam", "esam", "esam-swp", "esam-sds", "esam-random", "slicesam")
    """Who is timed; `all`: every row of `esam methods`."""
    against: tuple[str, ...] = ()
    """Other packages to time beside them: pytorch_optimizer."""
    memory: bool = True
    """Measure memory too."""
    out: Path | None = None
    """Where to write the JSON record."""
    format: Form = "table"
    """How the result is printed."""


def bench(arguments: list[str]) -> None:
    """``esam bench step``: what a step costs."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return
    if arguments[:1] != ["step"]:
        got = repr(arguments[0]) if arguments else "nothing"
        raise ValueError(f"esam bench knows one thing to measure, step, got {got}; see esam bench step --help")
    options = parse("bench step", BenchOptions, arguments[1:], bench=Bench())
    import json
    import shutil

    from esam.bench.contenders import contender
    from esam.bench.memory import check_measurable, peak_memory
    from esam.bench.steps import bench_steps, steps_sheet
    from esam.files import check_writable, write_atomically
    from esam.optim import METHODS
    from esam.report.sheets import formatted
    from esam.train.history import ALIASES

    named = METHODS if options.contenders == ("all",) else options.contenders
    contenders = {ALIASES.get(name, name): contender(name) for name in (*named, *options.against)}
    options.bench.check()
    if options.memory:
        check_measurable(options.bench)
    if options.out is not None:
        check_writable(options.out)
    result = bench_steps(options.bench, contenders)
    if options.memory:
        for name, row in result["contenders"].items():
            row["memory"] = peak_memory(options.bench, contenders[name])
    print(formatted([steps_sheet(result)], options.format, shutil.get_terminal_size().columns))
    if options.format == "table":
        print(f"\n{LEGEND}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())
