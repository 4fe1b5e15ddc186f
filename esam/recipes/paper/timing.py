"""How fast is each method of a table? Its steps timed in turn with SAM's in one run: what disturbs one disturbs all.

The images a second of training runs, made at different times on a machine that may have been busy, stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from esam.reproduce.cost import DATA, units
from esam.reproduce.item import Row
from esam.reproduce.store import Found, configs
from esam.train.config import Config

from .common import DEFAULT, figures_of, slug
from .planes import remembered


def table_values(found: Found) -> dict[str, Any]:
    """Return what a table shows: accuracy and speed by task and method, and the tasks as they are run."""
    rows = found.needs.rows
    titles = {row.task: row.title for row in rows}
    return {"tasks": figures_of(found, rows), "timed": timed(found, rows), "titles": titles}


def timed(found: Found, rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return each method's speed over SAM's by task: the ratio of totals, an interval of the median, and n rounds."""
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
        return {
            label: _over_sam(rows[name]["time / sam"], rows[name]["units"])
            for label, name in zip(methods, contenders, strict=True)
        }

    key = {"bench": asdict(bench), "methods": {label: own.given() for label, own in methods.items()}}
    try:
        return remembered(found.kept(f"timed-{slug(task)}-{len(methods)}{'d' * (DEFAULT in methods)}"), key, work)
    finally:
        torch.set_num_threads(threads)


def _over_sam(time: dict[str, Any], counted: float) -> dict[str, Any]:
    low, high = time["interval"]
    return {"ratio": 1 / time["of totals"], "interval": [1 / high, 1 / low], "n": time["n"], "counted": 6 / counted}
