"""How are methods compared on a model, data, loss and optimizer that exist in Python alone?"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from esam.report import MethodSummary, summarise, write_report
from esam.report.advice import advice
from esam.report.results import results_sheet
from esam.report.sheets import as_text
from esam.report.words import sentences
from esam.train.config import Config
from esam.train.evaluation import Batch, Loss, Metric, per_sample_cross_entropy
from esam.train.facts import data_facts
from esam.train.lighter import lighter
from esam.train.loader import SeededLoader
from esam.train.models import fastest_memory_format
from esam.train.names import did_you_mean
from esam.train.ranks import Ranks
from esam.train.record import RunRecord
from esam.train.runs import EVALUATION_BATCH, InOrder, Parts, build_optimizer, check_choices, chosen_device, run
from esam.train.spread import spread
from esam.train.task import Task, TaskBatches
from esam.train.trained import IMAGES, objective_sharpness

from .plan import DEFAULT_METHODS, Comparison, plan

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
Given = tuple[Tensor, Tensor] | Dataset[Any] | DataLoader[Any]
"""Inputs and targets as tensors, a Dataset of such pairs, or a DataLoader."""

TAKEN = [
    "batch_size",
    "evaluate_every",
    "lr",
    "momentum",
    "weight_decay",
    "schedule",
    "warmup",
    "budget",
    "precision",
    "device",
    "threads",
    "strategy",
    "workers",
    "compile",
    "checkpointing",
    "notes",
]
"""Fields of a configuration that mean something for data and a model of Python's own."""


@dataclass(frozen=True)
class Compared:
    """What a comparison came to; printed, it is the table and a sentence about each method."""

    records: tuple[RunRecord, ...]
    report: Path

    def __str__(self) -> str:
        told = summarise(self.records).items()
        return "\n\n".join(_told(title, methods) for title, methods in told)


def compare(
    build_model: Callable[[], nn.Module],
    train: Given,
    test: Given,
    *,
    methods: Sequence[str] = DEFAULT_METHODS,
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 30,
    loss: Loss = per_sample_cross_entropy,
    metric: Metric | None = None,
    optimizer: OptimizerFactory | str = "sgd",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    classes: Sequence[str] | None = None,
    name: str = "own",
    out: str | Path = "runs/compare",
    tell: Callable[[str], None] | None = print,
    **more: Any,
) -> Compared:
    """Train by several methods and seeds, alike in all else; the same call resumes, and returns what is done.

    Every method sees the same initial weights, batches and random numbers. The records in ``out`` are those of
    ``esam compare``, and so is the report. Changed data and a model of other tensors are noticed; a changed loss or
    metric is not: choose another ``out`` then.

    Args:
        build_model: Called for each run, after ``torch.manual_seed(seed)``; pretrained weights are loaded in it.
        train: ``(inputs, targets)`` as tensors, a Dataset of such pairs, or a DataLoader, which keeps its batch size.
        test: The same, to evaluate on.
        methods: Names of ``esam.METHODS``.
        loss: ``(outputs, targets)`` -> one loss per sample.
        metric: ``(outputs, targets)`` -> one number per sample, averaged over the test data. Accuracy needs none.
        optimizer: A function from parameters to a torch optimizer, or "sgd" or "adamw" with ``lr=`` and so on.
        settings: What differs for a method, as in ``{"sam": {"rho": 0.1}}``.
        classes: The classes' names.
        name: What the report calls the data.
        tell: Called with a line for each epoch; None: silence.
        more: Fields of ``esam.train.Config``: batch_size, evaluate_every, lr, momentum, weight_decay, schedule, budget,
            precision, device, threads, strategy, workers, compile, checkpointing, notes.

    Under torchrun, in a process group of your own, call it on every rank.
    """
    _check_words(more, train, optimizer)
    own = _Own(build_model, train, test, loss, metric, optimizer, classes)
    config = own.configured(Config(data=name, epochs=epochs, **more)).check()
    runs = plan(Comparison(config, tuple(methods), tuple(seeds), settings or {}), out)
    records = []
    for planned in runs:
        record = run(
            planned.config,
            planned.folder,
            parts=own.parts,
            measures={"sharpness": own.sharpness},
            watch=None if tell is None else _teller(tell, planned.config),
            keep_weights=True,
        )
        records.append(record)
    ranks = Ranks.current()
    return Compared(tuple(records), ranks.from_first(write_report(out) if ranks.first else Path(out)))


class _Own:
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
    ) -> None:
        if isinstance(build_model, nn.Module):
            raise ValueError("build_model must be a function that builds a model, got a model; write lambda: ...")
        for word, given in (("build_model", build_model), ("loss", loss)):
            if not callable(given):
                raise ValueError(f"{word} must be a function, got {type(given).__name__}")
        self._build, self._loss, self._metric, self._optimizer = build_model, loss, metric, optimizer
        self._train, self._test = train, test
        parts = [given.dataset if isinstance(given, DataLoader) else given for given in (train, test)]
        self._task = Task(parts[0], parts[1], loss, None if classes is None else tuple(classes))
        self._facts = data_facts(self._task)

    def configured(self, config: Config) -> Config:
        """Return the configuration with the model and the optimizer told by their names and settings."""
        model, batch = self._model(0), getattr(self._train, "batch_size", None)
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
        return dataclasses.replace(config, optimizer=_described(base), lr=float(base.param_groups[0]["lr"]), **told)  # type: ignore[arg-type]

    def parts(self, config: Config) -> Parts:
        """Return the parts of one run."""
        device = chosen_device(config.device)
        model = self._model(config.seed)
        model = model.to(device=device, memory_format=fastest_memory_format(model))  # type: ignore[call-overload]
        train, ordered = self._batches(self._train, config, device)
        steps = config.epochs * len(train) if config.budget is None else None
        facts = {**self._facts, "model": _shape_of(model)}
        model, whole = spread(lighter(model, config), config.strategy, Ranks.current())
        base = None if isinstance(self._optimizer, str) else self._optimizer(model.parameters())
        method = build_optimizer(config, model, base=base, total_steps=steps)
        test = self._batches(self._test, config, device)[1]
        return Parts(self._task, facts, model, method, train, test, ordered, self._loss, device, whole, self._metric)

    def sharpness(self, model: nn.Module, data: Any, device: torch.device) -> float:
        """Return R_S over some training samples."""
        _, ordered = self._batches(self._train, Config(), device)
        return objective_sharpness(model, _some(ordered, IMAGES, device), self._loss)

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


def _check_words(more: Mapping[str, Any], train: Given, optimizer: OptimizerFactory | str) -> None:
    """Refuse a word that would have no effect."""
    for word in more:
        if word not in TAKEN:
            raise ValueError(f"esam.compare has no argument {word!r}.{did_you_mean(word, TAKEN)}")
        if word in ("lr", "momentum", "weight_decay") and not isinstance(optimizer, str):
            raise ValueError(f"{word} is the optimizer's own: set it in the function that makes it")
        if word == "batch_size" and isinstance(train, DataLoader):
            raise ValueError("batch_size is the DataLoader's own: set it there")


def _told(title: str, methods: Sequence[MethodSummary]) -> str:
    lines = [sentences(methods), *(f"- {line}" for line in advice(methods))]
    return "\n".join([as_text(results_sheet(methods, title)), "", *lines])


def _described(base: Optimizer) -> str:
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
        yield x.to(device), y.to(device)


def _teller(tell: Callable[[str], None], config: Config) -> Callable[[dict[str, Any]], None]:
    return lambda line: tell(f"{config.method}, seed {config.seed}: {_words(line)}")


def _words(line: Mapping[str, Any]) -> str:
    told = [f"epoch {line['epoch']}, train loss {line['train_loss']:.3f}"]
    if line.get("test_accuracy") is not None:
        told.append(f"test {100 * line['test_accuracy']:.2f} %")
    elif line.get("test_loss") is not None:
        told.append(f"test loss {line['test_loss']:.4g}")
    if line.get("test_metric") is not None:
        told.append(f"metric {line['test_metric']:.4g}")
    return ", ".join(told)
