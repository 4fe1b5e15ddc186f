"""What is wrong before the first run starts? Everything that can be known then, each fault once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esam.extras import missing
from esam.files import unwritable_folder
from esam.train.build import batches_of, build_optimizer, check_choices, chosen_device, configured_task, prepared_model
from esam.train.config import Config, is_factory
from esam.train.datasets import check_memory
from esam.train.evaluation import Loss, per_sample_cross_entropy
from esam.train.models import fastest_memory_format
from esam.train.record import RECORD_NAME
from esam.train.runner import ended_record
from esam.train.samples import Batch, outputs_of, row_of, rows_of, sample_count
from esam.train.task import Task, data_facts

from .plan import PlannedRun

DATA_SETTINGS = ["data", "label_column", "image_column", "train_size", "label_noise", "validation", "size"]
"""Settings that decide which data a run sees."""
FEW = 2
"""Samples that are passed through a model before anything is trained."""
LOOKED_AT = 256
"""Samples of a Dataset that are searched for values that are not finite, evenly spread; of tensors all are."""
UNSEEDED = (
    "the model begins with other weights when it is built again after the same seed, so methods could not be compared; "
    "draw them from torch's global generator, without a seed of their own"
)
FAULTS = (ValueError, ImportError, OSError, RuntimeError)


def check(runs: Sequence[PlannedRun], out: str | Path | None = None) -> None:
    """Refuse runs that could not be done, with every fault named once; finished ones must be of these data.

    Loads each data set once, builds each model and method once, passes a few samples through, and trains nothing. With
    ``out``, a report is to be written there.
    """
    faults = list(_of_output(Path(out), runs)) if out is not None else []
    for together in _by_data(runs):
        faults += _of_runs(together)
    faults = list(dict.fromkeys(faults))
    if len(faults) > 1:
        raise ValueError("\n  ".join([f"{len(faults)} things are wrong, and nothing was run:", *faults]))
    if faults:
        raise ValueError(faults[0])


def check_folder_outside_data(folder: Path, config: Config) -> None:
    """Refuse an output folder inside the data, where results would be taken for pictures."""
    for fault in _inside_data(folder, config):
        raise ValueError(fault)


def faults_of_fit(model: nn.Module, batch: Batch, loss: Loss, classes: int | None = None) -> list[str]:
    """Return why a model, a loss and data do not go together: the first samples are passed through once.

    ``classes`` is how many there are, where the targets are classes and the loss is the cross entropy.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return ["there is nothing to train: no parameter of the model requires a gradient (requires_grad)"]
    inputs, targets = (rows_of(part, slice(0, FEW)) for part in batch)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            outputs = outputs_of(model.eval(), inputs)
            if not isinstance(outputs, Tensor):
                return [
                    f"the model returns a {type(outputs).__name__}; return a tensor, or an object that has logits, as "
                    "those of transformers do"
                ]
            if classes is not None and outputs.dim() == 2 and outputs.shape[1] < classes:
                return [
                    f"the model has {outputs.shape[1]} outputs, and the labels go up to {classes - 1}: give it "
                    f"{classes} outputs, one for each class"
                ]
            losses = loss(outputs, targets)
        except Exception as error:  # torch, and a user's own code, raise of every kind
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return [f"the model, the loss and the data do not fit: a forward pass of {FEW} samples failed ({reason})"]
    if not isinstance(losses, Tensor) or losses.shape != targets.shape[:1]:
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        return [f'the loss must give one number per sample (reduction="none"), got {got} for {len(targets)} samples']
    if not losses.isfinite().all():
        return ["the loss is not finite before any training; look for NaN or infinite values in the data"]
    return []


def faults_of_data(task: Task) -> list[str]:
    """Return where the inputs or targets of a task are NaN or infinite: by sample and column, once for each part."""
    faults: list[str] = []
    for name in ("train", "test"):
        samples = getattr(task, name)
        if isinstance(samples, tuple):
            inputs, targets = samples
            parts = dict(inputs) if isinstance(inputs, Mapping) else {"inputs": inputs}
            for key, part in {**parts, "targets": targets}.items():
                faults += _not_finite(name, key, part)
            continue
        if task.transform is not None:  # pictures, which are whole numbers
            continue
        for row in torch.linspace(0, sample_count(samples) - 1, min(LOOKED_AT, sample_count(samples))).long().tolist():
            inputs, _ = row_of(samples, row)
            if isinstance(inputs, Tensor) and (found := list(_not_finite(name, "inputs", inputs[None], row))):
                faults += found
                break
    return faults


def _not_finite(name: str, part: str, values: Any, first: int = 0) -> Iterator[str]:
    if isinstance(values, Tensor) and values.is_floating_point() and not (finite := values.isfinite()).all():
        row, *column = (~finite).nonzero()[0].tolist()
        value = values[(row, *column)].item()
        place = f", column {column[0]}" if len(column) == 1 else f", position {tuple(column)}" if column else ""
        yield (
            f"the {name} {part} hold {int((~finite).sum())} values that are not finite numbers, the first ({value}) in "
            f"sample {first + row}{place}; remove or replace them"
        )


def warn_of_untested_classes(facts: Mapping[str, Any]) -> None:
    """Warn of classes that are trained and not tested."""
    counts = facts.get("of_each_class") or {}
    train, test = counts.get("train"), counts.get("test")
    if train and test:
        tested = [*test, *[0] * len(train)]
        names = facts.get("classes") or list(map(str, range(len(train))))
        lacking = [names[n] for n, count in enumerate(train) if count and not tested[n]]
        if lacking:
            warnings.warn(
                f"the test data hold no sample of {', '.join(map(str, lacking[:5]))}{' ...' if lacking[5:] else ''}: "
                "the test accuracy says nothing of them",
                stacklevel=2,
            )


def class_count_of(facts: Mapping[str, Any]) -> int | None:
    """Return how many classes the labels go up to; None where the targets are no classes."""
    counts = [part for part in (facts.get("of_each_class") or {}).values() if part]
    return max(map(len, counts)) if counts else None


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models that were built after the same seed begin with the same weights."""
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


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
        task = configured_task(config)
        facts = data_facts(task)
    except FAULTS as error:
        return [*faults, str(error)]
    if found := faults_of_data(task):
        return [*faults, *found]
    warn_of_untested_classes(facts)
    built: set[str] = set()
    classes = class_count_of(facts) if task.loss is per_sample_cross_entropy else None
    for run in sound:
        try:
            ended_record(run.folder / RECORD_NAME, run.config, facts)
            if (one := replace(run.config, seed=0).id()) not in built:
                built.add(one)
                device = chosen_device(run.config.device)
                model = prepared_model(run.config, task, device)
                build_optimizer(run.config, model, total_steps=1)
                if is_factory(run.config.model) and not same_weights(model, prepared_model(run.config, task, device)):
                    faults.append(UNSEEDED)
                shape = facts.get("shape") or ()
                each = 8 * math.prod(shape)  # float32, and as much again on the way through the first layer
                check_memory(run.config.batch_size * each, f"a batch of {run.config.batch_size} inputs", "batch_size")
                batches = batches_of(run.config, task, device, fastest_memory_format(model))[0]
                faults += faults_of_fit(model, next(iter(batches.epoch(1))), task.loss, classes)
        except FAULTS as error:
            faults.append(str(error))
    return faults


def _of_output(out: Path, runs: Sequence[PlannedRun]) -> Iterator[str]:
    """Give what would prevent a report in that folder."""
    yield from missing("plotly", "jinja2", purpose="the report")
    yield from missing("safetensors", purpose="keeping the weights")
    yield from unwritable_folder(out)
    for run in runs[:1]:
        yield from _inside_data(out, run.config)


def _inside_data(folder: Path, config: Config) -> Iterator[str]:
    data = Path(config.data).expanduser()
    if not is_factory(config.data) and data.is_dir() and folder.absolute().resolve().is_relative_to(data.resolve()):
        yield (
            f"{folder} (--out) is inside the data folder {config.data}, where results would be taken for pictures; "
            "choose another folder, such as --out ../runs"
        )
