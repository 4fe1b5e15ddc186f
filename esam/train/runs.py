"""How does a configuration become a finished run with a record?"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from esam.files import folder_lock
from esam.optim import SharpnessAware

from .augment import find_augmentation
from .checkpoint import Checkpoint
from .config import Config, find_method
from .data import Batches, Data, load_data
from .evaluation import PRECISIONS, Loss, Metric, class_accuracy, evaluate, per_sample_cross_entropy
from .facts import Facts, data_facts
from .inputs import Batch
from .loop import Epochs, Schedule, cosine, evaluation_weights, fit, warmed
from .models import build_model, fastest_memory_format
from .names import did_you_mean
from .outcome import divergence, first_line, results
from .place import ended_record, open_record
from .record import RECORD_NAME, RunRecord, read_record
from .task import Task, TaskBatches, class_count, image_shape, is_factory, load_task, make_model
from .weights import WeightsKeeper

BASE_TITLES = {"sgd": "SGD", "adamw": "AdamW"}
SCHEDULES: dict[str, Schedule | None] = {"cosine": cosine, "constant": None}
EVALUATION_BATCH = 500

Measure = Callable[[nn.Module, Any, torch.device], Any]
Observe = Callable[[int, nn.Module, Any], None]


def title(config: Config) -> str:
    """Return the name that people read: SGD, SAM, ESAM ..."""
    _check_choice("optimizer", config.optimizer, BASE_TITLES)
    return find_method(config.method).named(BASE_TITLES[config.optimizer])


def build_optimizer(
    config: Config, model: nn.Module, *, base: Optimizer | None = None, total_steps: int | None = None
) -> SharpnessAware:
    """Return the configured method around the configured base optimizer, or around the one that is given.

    A method that follows training is told its length in steps, unless the settings tell it another.
    """
    method = find_method(config.method)
    for name in config.settings:
        if name not in method.options():
            takes = ", ".join(method.options()) or "none"
            raise ValueError(f"{config.method} takes no {name}; its settings: {takes}")
    base = configured_base(config, model) if base is None else base
    length = {"total_steps": total_steps} if total_steps is not None and "total_steps" in method.options() else {}
    return method(base, model, seed=config.seed, **{**length, **config.settings})


def configured_base(config: Config, model: nn.Module) -> Optimizer:
    """Return the configured base optimizer."""
    _check_choice("optimizer", config.optimizer, BASE_TITLES)
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
    return torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)


@dataclass(frozen=True)
class Parts:
    """What a run is made of, ready to train."""

    data: Data | Task
    facts: Facts
    model: nn.Module
    optimizer: SharpnessAware
    train: Epochs
    test: Iterable[Batch]
    ordered: Iterable[Batch]
    """The training data once, in order: what is fitted is told by them."""
    loss: Loss
    device: torch.device
    metric: Metric | None = None


def configured_parts(config: Config) -> Parts:
    """Return the parts that a configuration names."""
    check_choices(config)
    device = chosen_device(config.device)
    data = configured_task(config) if is_factory(config.data) else configured_data(config)
    facts = data_facts(data)
    model = prepared_model(config, data, device)
    train, test, ordered = batches_of(config, data, device, fastest_memory_format(model))
    steps = config.epochs * len(train) if config.budget is None else None
    optimizer = build_optimizer(config, model, total_steps=steps)
    loss: Loss = data.loss if isinstance(data, Task) else per_sample_cross_entropy
    return Parts(data, facts, model, optimizer, train, test, ordered, loss, device)


def run(
    config: Config,
    folder: str | Path,
    *,
    measures: Mapping[str, Measure] | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    observe: Observe | None = None,
    keep_weights: bool = False,
    parts: Callable[[Config], Parts] = configured_parts,
) -> RunRecord:
    """Run a configuration in a folder, or resume it; a run that has come to its end is returned as it is.

    A run whose loss ceases to be finite ends as ``diverged``. More epochs than the folder's run has go on from its end;
    where the learning rate follows the length, that is not what so many epochs from the start would have given, and
    the record says so (``extended``).

    ``measures`` are taken of the trained model at the end, and stand in the record's last line under their names;
    ``watch`` is called with the figures of each epoch, and ``observe`` with the epoch, the model as it is then and the
    data; it must leave the model and the random stream as they are. ``keep_weights`` keeps the best and the last
    weights in files of their own, as ``esam.load_run`` reads them. ``parts`` makes what is trained.
    """
    folder, config = Path(folder), config.check()
    path = folder / RECORD_NAME
    if config.threads:
        torch.set_num_threads(config.threads)
    made = parts(config)
    model, optimizer = made.model, made.optimizer
    if (ended := ended_record(path, config, made.facts)) is not None:
        return ended
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):
        if (ended := ended_record(path, config, made.facts)) is not None:  # by another process, meanwhile
            return ended
        checkpoint = Checkpoint(folder)
        first = first_line(config, made.optimizer, made.facts, made.device)
        writer = open_record(path, config, checkpoint, first)
        so_far = read_record(path)
        last: dict[str, Any] = dict(so_far.epochs[-1]) if so_far.epochs else {}
        keeper = WeightsKeeper(so_far) if keep_weights else None

        def on_epoch(metrics: dict[str, Any]) -> None:
            writer.epoch(**metrics)
            last.update(metrics)
            if keeper is not None:
                with evaluation_weights(optimizer):
                    keeper.epoch(metrics, model)
            if watch is not None:
                watch(metrics)
            if observe is not None:
                observe(metrics["epoch"], model, made.data)

        progress = fit(
            model,
            optimizer,
            made.train,
            made.test,
            epochs=config.epochs if config.budget is None else sys.maxsize,
            loss=made.loss,
            metric=made.metric,
            schedule=schedule_of(config),
            budget=config.budget,
            precision=config.precision,
            evaluate_every=config.evaluate_every,
            checkpoint=checkpoint,
            on_epoch=on_epoch,
        )
        with evaluation_weights(optimizer):
            trained = evaluate(model, made.ordered, made.loss, precision=config.precision)
            diverged = progress.diverged or not math.isfinite(trained["test_loss"])
            asked = {} if diverged else measures or {}
            if keeper is not None and not diverged:
                keeper.end(last, model)
            taken = {name: measure(model, made.data, made.device) for name, measure in asked.items()}
            if not diverged:
                taken["class_accuracy"] = class_accuracy(model, made.test, precision=config.precision)
        how = {"status": "diverged", "error": divergence(config, progress)} if diverged else {}
        writer.end(**how, **results(progress, last, trained, made.device), **taken)
        return read_record(path)


def configured_data(config: Config) -> Data:
    """Return the configured images and labels."""
    return load_data(
        config.data,
        label_column=config.label_column,
        image_column=config.image_column,
        train_size=config.train_size,
        label_noise=config.label_noise,
        size=config.size,
        validation=config.validation,
    )


def configured_task(config: Config) -> Task:
    """Return the configured data of the user's own; what only pictures have is refused, not ignored."""
    pictures = {"size": None, "label_column": None, "image_column": None, "augment": "none"}
    for name, usual in pictures.items():
        if getattr(config, name) != usual:
            told = f"{name} is for pictures, and {config.data} is a function of your own: do it there, and leave it out"
            raise ValueError(told)
    return load_task(
        config.data, train_size=config.train_size, label_noise=config.label_noise, validation=config.validation
    )


def prepared_model(config: Config, data: Data | Task, device: torch.device) -> nn.Module:
    """Return the configured model with its initial weights, on the device and in its fastest layout."""
    torch.manual_seed(config.seed)
    if is_factory(config.model):
        model = make_model(config.model, data)
    else:
        channels, height, _ = image_shape(data) if isinstance(data, Task) else data.train.shape
        classes = class_count(data) if isinstance(data, Task) else len(data.classes)
        if classes < 2:
            raise ValueError(f"{config.data} has a single class, and there is nothing to tell apart; give it another")
        model = build_model(config.model, classes=classes, channels=channels, size=height)
    return model.to(device=device, memory_format=fastest_memory_format(model))  # type: ignore[call-overload,no-any-return]


def schedule_of(config: Config) -> Schedule | None:
    """Return the factor on the learning rate by progress, warm-up included."""
    schedule = SCHEDULES[config.schedule]
    return warmed(schedule, config.warmup / config.epochs) if config.warmup else schedule


class InOrder:
    """A split, once in order, as often as it is asked for."""

    def __init__(self, batches: Batches | TaskBatches) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return self._batches.in_order()


def batches_of(
    config: Config, data: Data | Task, device: torch.device, memory_format: torch.memory_format
) -> tuple[Batches | TaskBatches, InOrder, InOrder]:
    """Return the training batches, the test set in order, and the training set in order."""
    if isinstance(data, Task):
        where = {"device": device, "memory_format": memory_format}
        shuffled = TaskBatches(data.train, config.batch_size, seed=config.seed, **where)  # type: ignore[arg-type]
        parts = [TaskBatches(part, EVALUATION_BATCH, **where) for part in (data.test, data.train)]  # type: ignore[arg-type]
        return shuffled, InOrder(parts[0]), InOrder(parts[1])
    common = {"mean": data.mean, "std": data.std, "device": device, "memory_format": memory_format}
    train = Batches(data.train, config.batch_size, augment=config.augment, seed=config.seed, **common)  # type: ignore[arg-type]
    test = Batches(data.test, EVALUATION_BATCH, **common)  # type: ignore[arg-type]
    ordered = Batches(data.train, EVALUATION_BATCH, **common)  # type: ignore[arg-type]
    return train, InOrder(test), InOrder(ordered)


def chosen_device(name: str) -> torch.device:
    """Return the device of that name; ``auto``: an accelerator if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be auto, cpu or one that torch finds here, got {name!r} ({error})") from error


def check_choices(config: Config) -> None:
    """Refuse a word that names no optimizer, schedule, precision or augmentation."""
    _check_choice("optimizer", config.optimizer, BASE_TITLES)
    _check_choice("schedule", config.schedule, SCHEDULES)
    _check_choice("precision", config.precision, PRECISIONS)
    find_augmentation(config.augment)


def _check_choice(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.{did_you_mean(value, known)}")
