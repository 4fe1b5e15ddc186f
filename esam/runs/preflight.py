"""What is wrong before the first run starts? Everything that can be known then, each fault once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esam.extras import missing
from esam.files import unwritable_folder
from esam.train.build import batches_of, build_optimizer, check_choices, chosen_device, prepared_model, shape_of
from esam.train.config import Config, is_factory
from esam.train.datasets import check_memory, load_data
from esam.train.evaluation import per_sample_cross_entropy
from esam.train.models import fastest_memory_format
from esam.train.record import RECORD_NAME
from esam.train.runner import ended_record
from esam.train.samples import Batch, Samples, outputs_of, row_of, rows_of, sample_count
from esam.train.task import Facts, Task, called, data_facts

from .plan import PlannedRun

DATA_SETTINGS = ["data", "label_column", "image_column", "train_size", "label_noise", "validation", "size"]
"""Settings that decide which data a run sees."""
FEW = 2
"""Samples that are passed through a model before anything is trained."""
LOOKED_AT = 256
"""Samples of a Dataset that are searched for values that are not finite, evenly spread; of tensors all are."""
FAULTS = (ValueError, ImportError, OSError, RuntimeError)


def check(runs: Sequence[PlannedRun], out: Path, *, report: bool = True) -> None:
    """Refuse runs that could not be done, with every fault named once; finished ones must be of these data.

    Loads each data set once, builds each model and method once, passes a few samples through, and trains nothing. With
    ``report``, a page is to be written to the folder ``out``.
    """
    faults = missing("safetensors", purpose="keeping the weights")
    faults += missing("plotly", "jinja2", purpose="the report") if report else []
    faults += [*unwritable_folder(out), *_inside_data(out, runs[0].config)]
    loaded: dict[tuple[object, ...], tuple[Task, Facts] | None] = {}
    models: dict[str, str | None] = {}
    for run in runs:
        try:
            if wrong := run.config.faults():
                faults += wrong
                continue
            check_choices(run.config)
            if (key := tuple(getattr(run.config, name) for name in DATA_SETTINGS)) not in loaded:
                loaded[key] = None  # if this fails, it is not tried again
                task = load_data(run.config)
                facts = called(run.config.data, data_facts, task)
                called(run.config.data, check_data, task, facts)
                loaded[key] = task, facts
            if (data := loaded[key]) is None:
                continue
            ended_record(run.folder / RECORD_NAME, run.config, data[1])
            if (id_without_seed := replace(run.config, seed=0).id()) not in models:
                models[id_without_seed] = None
                models[id_without_seed] = _check_run(run.config, *data)
            ended_record(run.folder / RECORD_NAME, run.config, {**data[1], "model": models[id_without_seed]})
        except FAULTS as error:
            faults.append(str(error))
    faults = list(dict.fromkeys(faults))
    if faults:
        several = [f"{len(faults)} things are wrong, and nothing was run:"] if len(faults) > 1 else []
        raise ValueError("\n  ".join([*several, *faults]))


def _check_run(config: Config, task: Task, facts: Facts) -> str:
    """Refuse a run whose model, method, loss and data do not go together; return the ``shape_of`` its model."""
    device = chosen_device(config.device)
    model = prepared_model(config, task, device)
    build_optimizer(config, model, total_steps=1)
    again = prepared_model(config, task, device) if is_factory(config.model) else None
    each = 8 * math.prod(facts.get("shape") or ())  # float32, and as much again on the way through the first layer
    check_memory(config.batch_size * each, f"a batch of {config.batch_size} inputs", "batch_size")
    batches = batches_of(config, task, device, fastest_memory_format(model))[0]
    batch = called(config.data, next, iter(batches.epoch(1)))
    check_model(model, again, batch, task, facts)
    return shape_of(model)


def _inside_data(folder: Path, config: Config) -> Iterator[str]:
    data = Path(config.data).expanduser()
    if not is_factory(config.data) and data.is_dir() and folder.absolute().resolve().is_relative_to(data.resolve()):
        yield (
            f"{folder} (--out) is inside the data folder {config.data}, where results would be taken for pictures; "
            "choose another folder, such as --out ../runs"
        )


def check_data(task: Task, facts: Facts) -> None:
    """Refuse inputs or targets that are NaN or infinite; warn of classes that are not tested."""
    faults: dict[tuple[str, str], str] = {}
    for name in ("train", "test"):
        for first, part, values in _looked_at(getattr(task, name), pictures=task.transform is not None):
            if isinstance(values, Tensor) and values.is_floating_point() and not (finite := values.isfinite()).all():
                row, *column = (~finite).nonzero()[0].tolist()
                place = f", column {column[0]}" if len(column) == 1 else f", position {tuple(column)}" if column else ""
                fault = (
                    f"the {name} {part} hold values that are not finite numbers, the first "
                    f"({values[(row, *column)].item()}) in sample {first + row}{place}; remove or replace them"
                )
                faults.setdefault((name, part), fault)
    if faults:
        raise ValueError("\n  ".join(faults.values()))
    train, test = ((facts.get("of_each_class") or {}).get(name) for name in ("train", "test"))
    if train and test:
        names = facts.get("classes") or range(len(train))
        absent = [str(names[n]) for n, count in enumerate(train) if count and not sum(test[n : n + 1])]
        if absent:
            some = f"{', '.join(absent[:5])}{' ...' if absent[5:] else ''}"
            message = f"the test data hold no sample of {some}: the test accuracy says nothing of them"
            warnings.warn(message, stacklevel=2)


def _looked_at(samples: Samples, *, pictures: bool) -> Iterator[tuple[int, str, Any]]:
    """Give the first row, the name and the values of each part of the samples that is searched."""
    if isinstance(samples, tuple):
        inputs, targets = samples
        parts = inputs if isinstance(inputs, Mapping) else {"inputs": inputs}
        for name, values in {**parts, "targets": targets}.items():
            yield 0, name, values
    elif not pictures:  # which are whole numbers
        count = sample_count(samples)
        for row in torch.linspace(0, count - 1, min(LOOKED_AT, count)).long().tolist():
            inputs, _ = row_of(samples, row)
            yield row, "inputs", inputs[None] if isinstance(inputs, Tensor) else inputs


def check_model(model: nn.Module, again: nn.Module | None, batch: Batch, task: Task, facts: Facts) -> None:
    """Refuse a model, a loss and data that do not go together: the first samples are passed through once.

    ``again`` is the model built once more after the same seed.
    """
    if again is not None and not all(map(torch.equal, model.state_dict().values(), again.state_dict().values())):
        raise ValueError(
            "the model begins with other weights when it is built again after the same seed, so methods could not be "
            "compared; draw them from torch's global generator, without a seed of their own"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("there is nothing to train: no parameter of the model requires a gradient (requires_grad)")
    if not isinstance(batch[1], Tensor):
        raise ValueError(
            f"the targets of a batch are a {type(batch[1]).__name__}; give each sample a number or a tensor"
        )
    inputs, targets = (rows_of(part, slice(0, FEW)) for part in batch)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outputs = _passed(outputs_of, model.eval(), inputs)
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"the model returns a {type(outputs).__name__}; return a tensor, or an object that has logits, as "
                "those of transformers do"
            )
        counts = [part for part in (facts.get("of_each_class") or {}).values() if part]
        classes = max(map(len, counts)) if counts and task.loss is per_sample_cross_entropy else 0
        if outputs.dim() == 2 and outputs.shape[1] < classes:
            raise ValueError(
                f"the model has {outputs.shape[1]} outputs, and the labels go up to {classes - 1}: give it "
                f"{classes} outputs, one for each class"
            )
        losses = _passed(task.loss, outputs, targets)
        broadcast = outputs.shape != targets.shape and outputs.numel() == targets.numel()
        alone = _passed(task.loss, outputs[:1], targets[:1]) if broadcast else None
    if not isinstance(losses, Tensor) or losses.shape != targets.shape[:1]:
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f'the loss must give one number per sample (reduction="none"), got {got} for {len(targets)} samples'
        )
    if not losses.isfinite().all():
        raise ValueError("the loss is not finite before any training; look for NaN or infinite values in the data")
    if alone is not None and not torch.allclose(alone, losses[:1]):
        raise ValueError(
            f"the loss of a sample depends on the other samples: outputs are {tuple(outputs.shape)}, targets "
            f"{tuple(targets.shape)}; give both the same shape"
        )


def _passed(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # torch, and a user's own code, raise of every kind
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(
            f"the model, the loss and the data do not fit: a forward pass of {FEW} samples failed ({reason})"
        ) from error
