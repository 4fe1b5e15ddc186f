"""How fast is each method of a table? Its steps timed in turn with SAM's in one run: what disturbs one disturbs all.

All methods that any table has on a workload are timed together, once, and every table shows that measurement. The times
of training runs, made one after the other on a machine that may have been busy, are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from esam.bench.config import Bench
from esam.bench.contenders import Contender, Registered, plain_loop
from esam.bench.steps import bench_steps
from esam.train.config import Config
from esam.train.runs import chosen_device

from ..engine.cost import DATA, units
from ..engine.inputs import Inputs
from ..engine.item import MethodRuns, Workload
from ..engine.values import remembered, slug


@dataclass(frozen=True)
class Ratio:
    """A ratio of total times, with an interval of the median over rounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Speed:
    """What a method's steps take."""

    images_per_second: float
    over_sam: Ratio
    """Speed, in units of SAM's."""
    time_over_base: Ratio
    """Time, in units of the base optimizer's."""
    counted: float
    """Speed over SAM's by counted passes."""
    rounds: int


def timed(inputs: Inputs, workload: Workload, every: Sequence[MethodRuns]) -> tuple[int, tuple[Speed, ...]]:
    """Return the CPU threads, and each method's speed; timed once for all tables, then remembered."""
    together = {name: runs.configs[0] for name, runs in _of_all_tables(inputs, workload).items()}
    first = every[0].configs[0]
    facts = DATA[first.data]
    before = torch.get_num_threads()
    bench = Bench(
        model=first.model,
        batch_size=first.batch_size,
        size=first.size or facts.size,
        classes=facts.classes,
        rounds=inputs.scale.timed_rounds,
        threads=first.threads or before,
        device=str(chosen_device(first.device)),
    )
    contenders = {name: _contender(config) for name, config in together.items()}

    def work() -> dict[str, Speed]:
        inputs.tell(f"timing {', '.join(contenders)} in turn: {bench.model}, batch {bench.batch_size}")
        rows = bench_steps(bench, contenders)["contenders"]
        return {name: _speed(rows[name], bench.batch_size) for name in contenders}

    key = {"bench": asdict(bench), "methods": [config.identity() for config in together.values()]}
    try:
        speeds = remembered(inputs.cache(f"timed-{slug(workload.paper)}"), key, dict[str, Speed], work)
    finally:
        torch.set_num_threads(before)
    return bench.threads, tuple(speeds[_name(runs)] for runs in every)


def _of_all_tables(inputs: Inputs, workload: Workload) -> dict[str, MethodRuns]:
    """Return what every table of the scale has on a workload; the first table's settings count."""
    from . import ITEMS
    from .tables import TableFigures

    tables = [item.needs(inputs.scale).runs for item in ITEMS.values() if item.kind is TableFigures]
    found: dict[str, MethodRuns] = {}
    for runs in (one for table in tables for one in table if one.workload == workload):
        found.setdefault(_name(runs), runs)
    return found


def _name(runs: MethodRuns) -> str:
    return runs.method if runs.share is None else f"{runs.method} {runs.share:g}"


def _contender(config: Config) -> Contender:
    build = plain_loop if config.method == "base" else Registered(config.method, dict(config.settings))
    return Contender(build, units(config))


def _speed(row: dict[str, Any], batch_size: int) -> Speed:
    over_sam, over_base = row["time / sam"], row["time / base"]
    low, high = over_sam["interval"]
    return Speed(
        images_per_second=batch_size / row["seconds"]["median"],
        over_sam=Ratio(1 / over_sam["of totals"], 1 / high, 1 / low),
        time_over_base=Ratio(over_base["of totals"], *over_base["interval"]),
        counted=6 / row["units"],
        rounds=over_sam["n"],
    )
