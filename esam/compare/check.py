"""What is wrong before the first run starts? Everything that can be known then, each fault once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from esam.train.facts import data_facts
from esam.train.models import fastest_memory_format
from esam.train.place import ended_record
from esam.train.record import RECORD_NAME
from esam.train.runs import (
    batches_of,
    build_optimizer,
    check_choices,
    chosen_device,
    configured_data,
    configured_task,
    prepared_model,
)
from esam.train.task import is_factory

from .plan import PlannedRun

DATA_SETTINGS = ["data", "label_column", "image_column", "train_size", "label_noise", "validation", "size"]
"""Settings that decide which data a run sees."""
FAULTS = (ValueError, ImportError, OSError, RuntimeError)


def check(runs: Sequence[PlannedRun], out: str | Path | None = None) -> None:
    """Refuse runs that could not be done, with every fault named once; what is finished must be of these data.

    Loads each data set once, builds each model and method once, takes one batch, and trains nothing. With ``out``, a
    page is to be written there.
    """
    faults = list(_of_place(Path(out))) if out is not None else []
    for together in _by_data(runs):
        faults += _of_runs(together)
    told = list(dict.fromkeys(faults))
    if len(told) > 1:
        raise ValueError("\n  ".join([f"{len(told)} things are wrong, and nothing was run:", *told]))
    if told:
        raise ValueError(told[0])


def _by_data(runs: Iterable[PlannedRun]) -> list[list[PlannedRun]]:
    found: dict[tuple[object, ...], list[PlannedRun]] = {}
    for run in runs:
        found.setdefault(tuple(getattr(run.config, name) for name in DATA_SETTINGS), []).append(run)
    return list(found.values())


def _of_runs(runs: Sequence[PlannedRun]) -> list[str]:
    """Return the faults of runs that see the same data."""
    faults: list[str] = []
    sound = []
    for run in runs:
        try:
            check_choices(run.config.check())
            sound.append(run)
        except FAULTS as error:
            faults.append(str(error))
    if not sound:
        return faults
    config = sound[0].config
    try:
        data = configured_task(config) if is_factory(config.data) else configured_data(config)
        facts = data_facts(data)
    except FAULTS as error:
        return [*faults, str(error)]
    built: set[str] = set()
    for run in sound:
        try:
            ended_record(run.folder / RECORD_NAME, run.config, facts)
            if (one := replace(run.config, seed=0).id()) not in built:
                built.add(one)
                device = chosen_device(run.config.device)
                model = prepared_model(run.config, data, device)
                build_optimizer(run.config, model, total_steps=1)
                next(iter(batches_of(run.config, data, device, fastest_memory_format(model))[0].epoch(1)))
        except FAULTS as error:
            faults.append(str(error))
    return faults


def _of_place(out: Path) -> Iterable[str]:
    """Return what would stand in the way of a report there."""
    for package in ("plotly", "jinja2"):
        if find_spec(package) is None:
            yield f"the report needs {package}; run: pip install torch-esam[train]"
    nearest = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        yield f"{out} (--out) cannot be written: {nearest} is no folder, or one that is not yours; choose another"
