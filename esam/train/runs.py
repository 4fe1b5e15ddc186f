"""How does a configuration become a finished run with a record?"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from esam.optim import SharpnessAware

from .augment import find_augmentation
from .checkpoint import Checkpoint
from .config import Config, find_method
from .data import Batches, Data, load_data
from .data.share import Part, Share
from .diary import Diary, Measure
from .evaluation import PRECISIONS, Loss, Metric, class_accuracy, evaluate, per_sample_cross_entropy
from .facts import Facts, data_facts
from .inputs import Batch
from .lighter import lighter
from .loop import Epochs, Schedule, cosine, evaluation_weights, fit, warmed
from .models import build_model, fastest_memory_format
from .names import did_you_mean
from .outcome import first_line
from .place import ended_record, own_folder
from .ranks import Ranks, local_rank
from .record import RECORD_NAME, RunRecord, read_record
from .spread import STRATEGIES, Whole, spread
from .task import Task, TaskBatches, class_count, image_shape, is_factory, load_task, make_model

BASE_TITLES = {"sgd": "SGD", "adamw": "AdamW"}
SCHEDULES: dict[str, Schedule | None] = {"cosine": cosine, "constant": None}
EVALUATION_BATCH = 500

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
    whole: Whole
    """Gives the model as one process has it."""
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
    model, whole = spread(lighter(model, config), config.strategy, Ranks.current())
    optimizer = build_optimizer(config, model, total_steps=steps)
    loss: Loss = data.loss if isinstance(data, Task) else per_sample_cross_entropy
    return Parts(data, facts, model, optimizer, train, test, ordered, loss, device, whole)


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
    folder, config, ranks = Path(folder), config.check(), Ranks.current()
    path = folder / RECORD_NAME
    if config.threads:
        torch.set_num_threads(config.threads)
    made = parts(config)

    def ended() -> RunRecord | None:
        return ranks.from_first(ended_record(path, config, made.facts) if ranks.first else None)

    if (record := ended()) is not None:
        return record
    with own_folder(folder, ranks):
        if (record := ended()) is not None:  # by another process, meanwhile
            return record
        checkpoint, diary = Checkpoint(folder), None
        if ranks.first:
            first = first_line(config, made.optimizer, made.facts, made.device)
            diary = Diary(path, config, checkpoint, first, keep_weights=keep_weights)

        def on_epoch(metrics: dict[str, Any]) -> None:
            if diary is not None:
                diary.epoch(metrics)
            if keep_weights:
                with evaluation_weights(made.optimizer):
                    best = made.whole()
                    if diary is not None:
                        diary.keep(metrics, best)
            if watch is not None and ranks.first:
                watch(metrics)
            if observe is not None:
                model = made.whole()
                if ranks.first:
                    observe(metrics["epoch"], model, made.data)

        progress = fit(
            made.model,
            made.optimizer,
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
            ranks=ranks,
        )
        with evaluation_weights(made.optimizer):
            trained = evaluate(made.model, made.ordered, made.loss, precision=config.precision, ranks=ranks)
            progress.diverged |= not math.isfinite(trained["test_loss"])
            classes: list[float | None] | None = None
            if not progress.diverged:
                classes = class_accuracy(made.model, made.test, precision=config.precision, ranks=ranks)
            model = made.whole()
            if diary is not None:
                diary.end(progress, trained, classes, model, made.data, made.device, measures or {})
        over = ranks.from_first(read_record(path) if ranks.first else None)
        assert over is not None, "rank 0 has read it"
        return over


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

    def parts_in_order(self, share: Share) -> Iterator[Part]:
        """Give a rank's parts of the batches."""
        return self._batches.parts_in_order(share)


def batches_of(
    config: Config, data: Data | Task, device: torch.device, memory_format: torch.memory_format
) -> tuple[Batches | TaskBatches, InOrder, InOrder]:
    """Return the training batches, the test set in order, and the training set in order."""
    if isinstance(data, Task):
        where = {"device": device, "memory_format": memory_format, "workers": config.workers or 0}
        shuffled = TaskBatches(data.train, config.batch_size, seed=config.seed, **where)  # type: ignore[arg-type]
        parts = [TaskBatches(part, EVALUATION_BATCH, **where) for part in (data.test, data.train)]  # type: ignore[arg-type]
        return shuffled, InOrder(parts[0]), InOrder(parts[1])
    common = {"mean": data.mean, "std": data.std, "device": device, "memory_format": memory_format}
    common |= {} if config.workers is None else {"workers": config.workers}
    train = Batches(data.train, config.batch_size, augment=config.augment, seed=config.seed, **common)  # type: ignore[arg-type]
    test = Batches(data.test, EVALUATION_BATCH, **common)  # type: ignore[arg-type]
    ordered = Batches(data.train, EVALUATION_BATCH, **common)  # type: ignore[arg-type]
    return train, InOrder(test), InOrder(ordered)


def chosen_device(name: str) -> torch.device:
    """Return the device of that name; ``auto``: an accelerator if there is one, for each of several ranks its own."""
    if name in ("auto", "cuda") and torch.cuda.is_available() and Ranks.current().several:
        return torch.device("cuda", local_rank())
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
    _check_choice("strategy", config.strategy, STRATEGIES)
    find_augmentation(config.augment)


def _check_choice(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.{did_you_mean(value, known)}")
