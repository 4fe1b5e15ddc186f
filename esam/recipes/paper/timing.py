"""How fast is each method of a table? Its steps timed in turn with SAM's in one run: what disturbs one disturbs all.

The times of training runs, made one after the other on a machine that may have been busy, are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from esam.reproduce.cost import DATA, units
from esam.reproduce.item import Row
from esam.reproduce.store import FORMAT, Found, configs
from esam.train.config import Config

from .common import DEFAULT, figures_of, slug
from .planes import remembered


def table_values(found: Found) -> dict[str, Any]:
    """Return what a table shows: accuracy and speed by task and method, and the tasks as they are run."""
    rows = found.needs.rows
    titles = {row.task: row.title for row in rows}
    return {"tasks": figures_of(found, rows), "timed": timed(found, rows), "titles": titles}


def timed(found: Found, rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return, by task, each method's images a second, its speed over SAM's and its time over the base optimizer's.

    The ratios are those of totals, with an interval of the median over n rounds.
    """
    tasks: dict[str, dict[str, Config]] = {}
    for row in rows:
        tasks.setdefault(row.task, {})[row.label] = configs([row])[0]
    return {task: _timed_task(found, task, methods) for task, methods in tasks.items()}


def _timed_task(found: Found, task: str, methods: dict[str, Config]) -> dict[str, Any]:
    import torch

    from esam.bench.config import Bench
    from esam.bench.contenders import CONTENDERS, Contender, method
    from esam.bench.steps import bench_steps
    from esam.train.runs import chosen_device

    config = next(iter(methods.values()))
    facts = DATA[config.data]
    bench = Bench(
        model=config.model,
        batch_size=config.batch_size,
        size=config.size or facts.size,
        classes=facts.classes,
        rounds=found.scale.rounds,
        threads=config.threads or torch.get_num_threads(),
        device=str(chosen_device(config.device)),
    )
    contenders = {
        # the bench knows the methods that it compares with by their keys
        {"SGD": "sgd", "AdamW": "sgd", "SAM": "sam"}.get(label, label): CONTENDERS["sgd"]
        if own.method == "sgd"
        else Contender(method(own.method, **own.method_settings()), units(own))
        for label, own in methods.items()
    }
    threads = torch.get_num_threads()

    def work() -> dict[str, Any]:
        found.tell(f"timing {', '.join(methods)} in turn: {bench.model}, batch {bench.batch_size}")
        rows = bench_steps(bench, contenders)["contenders"]
        return {label: _speed(rows[name], bench.batch_size) for label, name in zip(methods, contenders, strict=True)}

    key = {"format": FORMAT, "bench": asdict(bench), "methods": {label: own.given() for label, own in methods.items()}}
    try:
        return remembered(found.kept(f"timed-{slug(task)}-{len(methods)}{'d' * (DEFAULT in methods)}"), key, work)
    finally:
        torch.set_num_threads(threads)


def _speed(row: dict[str, Any], batch_size: int) -> dict[str, Any]:
    over_sam, over_base = row["time / sam"], row["time / sgd"]
    low, high = over_sam["interval"]
    return {
        "images_per_second": batch_size / row["seconds"]["median"],
        "ratio": 1 / over_sam["of totals"],
        "interval": [1 / high, 1 / low],
        "time": over_base["of totals"],
        "time interval": over_base["interval"],
        "n": over_sam["n"],
        "counted": 6 / row["units"],
    }
