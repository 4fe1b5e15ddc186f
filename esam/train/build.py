"""How does a configuration become a model, an optimizer and batches, ready to train?"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from esam.analysis.doctor import StepMonitor, watching
from esam.optim import SharpnessAware

from .augment import AUGMENTATIONS
from .batches import Batches
from .config import Config, check_known, find_method, is_factory
from .datasets import load_data
from .distributed import Ranks, in_parallel, local_rank
from .evaluation import PRECISIONS, Metric, autocast
from .loop import SCHEDULES, Epochs
from .models import build_model, fastest_memory_format
from .samples import Batch, Inputs, outputs_of
from .task import Facts, Task, data_facts, make_model

BASE_TITLES = {"sgd": "SGD", "adamw": "AdamW"}
CHOICES: dict[str, Collection[str]] = {
    "optimizer": BASE_TITLES,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "augment": AUGMENTATIONS,
}
EVALUATION_BATCH = 500


def title(config: Config) -> str:
    """Return the name that people read: SGD, SAM, ESAM ..."""
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
    if base is None:
        how: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
        if config.optimizer == "sgd":
            base = torch.optim.SGD(model.parameters(), momentum=config.momentum, **how)
        else:
            base = torch.optim.AdamW(model.parameters(), **how)
    length = {"total_steps": total_steps} if total_steps is not None and "total_steps" in method.options() else {}
    return method(base, model, seed=config.seed, **{**length, **config.settings})


@dataclass(frozen=True)
class Parts:
    """What a run is made of, ready to train."""

    task: Task
    facts: Facts
    model: nn.Module
    optimizer: SharpnessAware
    train: Epochs
    test: Iterable[Batch]
    ordered: Iterable[Batch]
    """The training data once, in order: the training accuracy at the end is measured on them."""
    device: torch.device
    metric: Metric | None = None


def build_parts(config: Config) -> Parts:
    """Return the parts that a configuration names."""
    check_choices(config)
    task, device = load_data(config), chosen_device(config.device)
    model = prepared_model(config, task, device)
    batches = batches_of(config, task, device, fastest_memory_format(model))
    return assemble(config, task, data_facts(task), model, batches)


def assemble(
    config: Config,
    task: Task,
    facts: Facts,
    model: nn.Module,
    batches: tuple[Epochs, Iterable[Batch], Iterable[Batch]],
    *,
    base: Optimizer | None = None,
    metric: Metric | None = None,
) -> Parts:
    """Return the parts of a run around a model that is on its device, and the base optimizer if one is given."""
    train, test, ordered = batches
    facts = {**facts, "model": shape_of(model)}
    if config.compile:
        model.compile()  # in place: its weights keep their names
    device = next(model.parameters()).device
    model = in_parallel(model, Ranks.current())
    steps = config.epochs * len(train) if config.budget is None else None
    optimizer = build_optimizer(config, model, base=base, total_steps=steps)
    return Parts(task, facts, model, optimizer, train, test, ordered, device, metric)


def prepared_model(config: Config, task: Task, device: torch.device) -> nn.Module:
    """Return the configured model with its initial weights, on the device and in its fastest layout."""
    torch.manual_seed(config.seed)
    if is_factory(config.model):
        return placed(make_model(config.model, task), device)
    shape = task.shape
    if shape is None or len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(
            "the models that esam can name take square images (channels, size, size) of float32; give a model of your "
            "own as package.module:function"
        )
    classes = task.class_count()
    if classes < 2:
        raise ValueError(f"{config.data} has a single class, and there is nothing to tell apart; give it another")
    return placed(build_model(config.model, classes=classes, channels=shape[0], size=shape[1]), device)


def placed(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model on a device, in its fastest layout."""
    return model.to(device=device, memory_format=fastest_memory_format(model))  # type: ignore[call-overload,no-any-return]


def shape_of(model: nn.Module) -> str:
    """Return what changes when the model does: a hash of the names, shapes and types of its tensors."""
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    shapes = [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in tensors.items()]
    return hashlib.sha256("\n".join(shapes).encode()).hexdigest()[:16]


def batches_of(
    config: Config, task: Task, device: torch.device, memory_format: torch.memory_format
) -> tuple[Batches, Batches, Batches]:
    """Return the training batches, the test set in order, and the training set in order."""
    common: dict[str, Any] = {"transform": task.transform, "device": device, "memory_format": memory_format}
    common["workers"] = config.workers
    train = Batches(task.train, config.batch_size, augment=config.augment, seed=config.seed, **common)
    test, ordered = (Batches(part, EVALUATION_BATCH, **common) for part in (task.test, task.train))
    return train, test, ordered


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
    for name, known in CHOICES.items():
        check_known(name, getattr(config, name), known)


def examine(config: Config, steps: int) -> StepMonitor:
    """Take some steps of a run, at its first learning rate, and return what was seen; nothing is written."""
    if config.threads:
        torch.set_num_threads(config.threads)
    parts = build_parts(config)

    def loss_of(x: Inputs, y: torch.Tensor) -> torch.Tensor:
        with autocast(parts.device, config.precision):
            return parts.task.loss(outputs_of(parts.model, x), y)

    parts.model.train()
    batches = itertools.chain.from_iterable(map(parts.train.epoch, itertools.count(1)))
    with watching(parts.optimizer) as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the findings say the same, with a remedy
        for x, y in itertools.islice(batches, steps):
            parts.optimizer.step(loss_of, x, y)
    return watch
