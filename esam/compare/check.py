"""What is wrong before the first run starts? Everything that can be known then, each fault once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from esam.extras import missing
from esam.files import unwritable_folder
from esam.train.evaluation import Loss, per_sample_cross_entropy
from esam.train.facts import data_facts
from esam.train.inputs import Batch, outputs_of, rows_of
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
from esam.train.task import Task, is_factory

from .plan import PlannedRun

DATA_SETTINGS = ["data", "label_column", "image_column", "train_size", "label_noise", "validation", "size"]
"""Settings that decide which data a run sees."""
FEW = 2
"""Samples that are passed through a model before anything is trained."""
FAULTS = (ValueError, ImportError, OSError, RuntimeError)


def check(runs: Sequence[PlannedRun], out: str | Path | None = None) -> None:
    """Refuse runs that could not be done, with every fault named once; what is finished must be of these data.

    Loads each data set once, builds each model and method once, passes a few samples through, and trains nothing. With
    ``out``, a page is to be written there.
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
        own = run.config.faults()
        try:
            check_choices(run.config)
        except FAULTS as error:
            own.append(str(error))
        faults += own
        if not own:
            sound.append(run)
    if not sound:
        return faults
    config = sound[0].config
    try:
        data = configured_task(config) if is_factory(config.data) else configured_data(config)
        facts = data_facts(data)
    except FAULTS as error:
        return [*faults, str(error)]
    built: set[str] = set()
    loss = data.loss if isinstance(data, Task) else per_sample_cross_entropy
    for run in sound:
        try:
            ended_record(run.folder / RECORD_NAME, run.config, facts)
            if (one := replace(run.config, seed=0).id()) not in built:
                built.add(one)
                device = chosen_device(run.config.device)
                model = prepared_model(run.config, data, device)
                build_optimizer(run.config, model, total_steps=1)
                batches = batches_of(run.config, data, device, fastest_memory_format(model))[0]
                faults += _of_fit(model, next(iter(batches.epoch(1))), loss)
        except FAULTS as error:
            faults.append(str(error))
    return faults


@torch.no_grad()
def _of_fit(model: nn.Module, batch: Batch, loss: Loss) -> Iterable[str]:
    """Return why a model, a loss and data do not go together: the first samples are passed through once."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return ["there is nothing to train: no parameter of the model requires a gradient (requires_grad)"]
    inputs, targets = (rows_of(part, slice(0, FEW)) for part in batch)
    try:
        losses = loss(outputs_of(model.eval(), inputs), targets)
    except Exception as error:  # torch, and a user's own code, raise of every kind
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return [f"the model, the loss and the data do not fit: a forward pass of {FEW} samples failed ({told})"]
    if not isinstance(losses, Tensor) or losses.shape != targets.shape[:1]:
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        return [f'the loss must give one number per sample (reduction="none"), got {got} for {len(targets)} samples']
    if not losses.isfinite().all():
        return ["the loss is not finite before any training; look for NaN or infinite values in the data"]
    return []


def _of_place(out: Path) -> Iterable[str]:
    """Return what would stand in the way of a report there."""
    yield from missing("plotly", "jinja2", purpose="the report")
    yield from missing("safetensors", purpose="keeping the weights")
    yield from unwritable_folder(out)
