"""How do a model, data, loss and optimizer that exist in Python alone become the parts of runs?"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from esam.train.config import Config
from esam.train.evaluation import Loss, Metric
from esam.train.facts import Facts, data_facts
from esam.train.inputs import Batch, Inputs, on_device
from esam.train.lighter import lighter
from esam.train.loader import SeededLoader
from esam.train.models import fastest_memory_format
from esam.train.ranks import Ranks
from esam.train.runs import EVALUATION_BATCH, InOrder, Parts, build_optimizer, check_choices, chosen_device
from esam.train.spread import spread
from esam.train.task import Task, TaskBatches, held_out_task
from esam.train.trained import IMAGES, objective_sharpness

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
Given = tuple[Inputs, Tensor] | Dataset[Any] | DataLoader[Any]
"""Inputs and targets as tensors, a Dataset of such pairs, or a DataLoader; inputs may be tensors by name."""


class _Split(NamedTuple):
    train: Given
    test: Given
    task: Task
    facts: Facts


class Own:
    """What a user gave, made into the parts of runs."""

    def __init__(
        self,
        build_model: Callable[[], nn.Module],
        train: Given,
        test: Given,
        loss: Loss,
        metric: Metric | None,
        optimizer: OptimizerFactory | str,
        classes: Sequence[str] | None,
        *,
        validation: Given | None = None,
        tune_over: Sequence[str] = (),
    ) -> None:
        if isinstance(build_model, nn.Module):
            raise ValueError("build_model must be a function that builds a model, got a model; write lambda: ...")
        for word, given in (("build_model", build_model), ("loss", loss)):
            if not callable(given):
                raise ValueError(f"{word} must be a function, got {type(given).__name__}")
        self._build, self._loss, self._metric, self._optimizer = build_model, loss, metric, optimizer
        self._classes = None if classes is None else tuple(classes)
        self._splits = {False: self._split(train, test)}
        self._searched = [name for name in tune_over if name in ("lr", "weight_decay")]
        if tune_over:
            self._splits[True] = self._held_out(train) if validation is None else self._split(train, validation)

    def configured(self, config: Config) -> Config:
        """Return the configuration with the model and the optimizer told by their names and settings."""
        model, batch = self._model(0), getattr(self._splits[False].train, "batch_size", None)
        where, what = (getattr(self._build, name, "own") for name in ("__module__", "__qualname__"))
        told: dict[str, Any] = {"model": f"{where}:{what}"}
        if batch is not None:
            told["batch_size"] = batch
        if isinstance(self._optimizer, str):
            config = dataclasses.replace(config, optimizer=self._optimizer, **told)  # type: ignore[arg-type]
            check_choices(config)
            return config
        base = self._optimizer(model.parameters())
        if not isinstance(base, Optimizer):
            raise ValueError(f"optimizer must return a torch optimizer, got {type(base).__name__}")
        started = {name: float(base.param_groups[0].get(name, 0)) for name in {"lr", *self._searched}}
        return dataclasses.replace(config, optimizer=described(base), **started, **told)  # type: ignore[arg-type]

    def parts(self, config: Config) -> Parts:
        """Return the parts of one run."""
        device, split = chosen_device(config.device), self._splits[config.validation]
        model = self._model(config.seed)
        model = model.to(device=device, memory_format=fastest_memory_format(model))  # type: ignore[call-overload]
        train, ordered = self._batches(split.train, config, device)
        steps = config.epochs * len(train) if config.budget is None else None
        facts = {**split.facts, "model": _shape_of(model)}
        model, whole = spread(lighter(model, config), config.strategy, Ranks.current())
        method = build_optimizer(config, model, base=self._base(config, model), total_steps=steps)
        test = self._batches(split.test, config, device)[1]
        return Parts(split.task, facts, model, method, train, test, ordered, self._loss, device, whole, self._metric)

    def sharpness(self, model: nn.Module, data: Any, device: torch.device) -> float:
        """Return R_S over some training samples."""
        _, ordered = self._batches(self._splits[False].train, Config(), device)
        return objective_sharpness(model, _some(ordered, IMAGES, device), self._loss)

    def _split(self, train: Given, test: Given) -> _Split:
        parts = [given.dataset if isinstance(given, DataLoader) else given for given in (train, test)]
        task = Task(parts[0], parts[1], self._loss, self._classes)
        return _Split(train, test, task, data_facts(task))

    def _held_out(self, train: Given) -> _Split:
        if isinstance(train, DataLoader):
            raise ValueError(
                "tune evaluates on samples that are not trained on, and a DataLoader cannot be divided; give such "
                "samples as validation=, or the Dataset in the loader's place"
            )
        task = held_out_task(self._splits[False].task)
        return _Split(task.train, task.test, task, data_facts(task))

    def _base(self, config: Config, model: nn.Module) -> Optimizer | None:
        """Return the user's own optimizer, with what a search has changed in all its groups by the same factor."""
        if isinstance(self._optimizer, str):
            return None
        base = self._optimizer(model.parameters())
        for name in self._searched:
            factor = getattr(config, name) / base.param_groups[0][name]
            for group in base.param_groups:
                group[name] *= factor
        return base

    def _model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = self._build()
        if not isinstance(model, nn.Module):
            raise ValueError(f"build_model must return a torch.nn.Module, got {type(model).__name__}")
        return model

    def _batches(self, given: Given, config: Config, device: torch.device) -> tuple[Any, Iterable[Batch]]:
        """Return batches to train by, and the same samples once, to evaluate on."""
        if isinstance(given, DataLoader):
            seeded = SeededLoader(given, seed=config.seed)
            return seeded, seeded
        workers = config.workers or 0
        shuffled = TaskBatches(given, config.batch_size, seed=config.seed, device=device, workers=workers)
        return shuffled, InOrder(TaskBatches(given, EVALUATION_BATCH, device=device, workers=workers))


def described(base: Optimizer) -> str:
    """Say an optimizer as it would be written: its class, and what differs from the class's defaults."""
    usual = {name: p.default for name, p in inspect.signature(type(base)).parameters.items()}
    groups = []
    for group in base.param_groups:
        own = {name: value for name, value in group.items() if name in usual and value != usual[name]}
        groups.append(
            ", ".join(f"{name}={value}" for name, value in {"lr": group["lr"], **own}.items() if name != "params")
        )
    return f"{type(base).__name__}({'; '.join(groups)})"


def _shape_of(model: nn.Module) -> str:
    """Return what changes when the model does: the names, shapes and types of its tensors, in few letters."""
    told = [
        f"{name} {tuple(value.shape)} {value.dtype}"
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    ]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def _some(batches: Iterable[Batch], most: int, device: torch.device) -> Iterator[Batch]:
    seen = 0
    for x, y in batches:
        if seen >= most:
            return
        seen += len(y)
        yield on_device(x, device), y.to(device)
