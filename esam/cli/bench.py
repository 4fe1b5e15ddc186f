"""``esam bench step``: what a step of each method costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from esam.bench.config import Bench

from .parsing import parse


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


def bench(arguments: list[str]) -> None:
    """``esam bench step``: what a step costs."""
    if arguments[:1] != ["step"]:
        raise ValueError(f"esam bench knows one thing to measure, step, got {arguments[:1] or 'nothing'}")
    options = parse("bench step", BenchOptions, arguments[1:], bench=Bench())
    import json
    import shutil

    from esam.bench.contenders import contender
    from esam.bench.memory import peak_memory
    from esam.bench.steps import bench_steps, steps_sheet
    from esam.files import write_atomically
    from esam.optim import METHODS
    from esam.report.sheets import as_text
    from esam.train.history import ALIASES

    named = METHODS if options.contenders == ("all",) else options.contenders
    contenders = {ALIASES.get(name, name): contender(name) for name in (*named, *options.against)}
    result = bench_steps(options.bench, contenders)
    if options.memory:
        for name, row in result["contenders"].items():
            row["memory"] = peak_memory(options.bench, contenders[name])
    print(as_text(steps_sheet(result), shutil.get_terminal_size((120, 24)).columns))
    if options.out is not None:
        write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())
