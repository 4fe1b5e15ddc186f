"""How are methods compared on a model, data, loss and optimizer that exist in Python alone?"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, default_collate

from esam.report.page import write_report
from esam.report.results import answer_text, figures
from esam.report.summaries import summarise
from esam.train.batches import SeededLoader
from esam.train.build import Parts, assemble, batches_of, check_choices, chosen_device, placed
from esam.train.config import Config, did_you_mean, suited
from esam.train.distributed import Ranks
from esam.train.evaluation import Loss, Metric, per_sample_cross_entropy
from esam.train.loaded_run import MEASURES
from esam.train.record import RunRecord
from esam.train.runner import run
from esam.train.samples import Batch, Inputs, sample_count
from esam.train.task import Facts, Task, data_facts, held_out_task

from .live import epoch_words
from .plan import DEFAULT_METHODS, Comparison, PlannedRun, plan
from .preflight import check_data, check_model
from .tuning import tuned_runs

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
FIELDS = (
    *("momentum", "weight_decay", "schedule", "warmup", "evaluate_every", "budget"),
    *("precision", "device", "threads", "workers", "compile", "notes"),
)
"""What ``compare`` takes of a run's configuration beside its own arguments."""
Samples = tuple[Inputs, Tensor] | Dataset[Any] | DataLoader[Any]
"""Inputs and targets as tensors, a Dataset of such pairs, or a DataLoader; inputs may be tensors by name."""


@dataclass(frozen=True)
class Compared:
    """The result of a comparison; printed, it is the table and a sentence about each method."""

    records: tuple[RunRecord, ...]
    report: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict for each method: its names, its seeds, and mean and standard deviation of each figure."""
        return figures(summarise(self.records))

    def __str__(self) -> str:
        return "\n\n".join(answer_text(methods, title) for title, methods in summarise(self.records).items())


def compare(
    build_model: Callable[[], nn.Module],
    train: Samples,
    test: Samples,
    *,
    methods: Sequence[str] = DEFAULT_METHODS,
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int | None = None,
    batch_size: int | None = None,
    loss: Loss = per_sample_cross_entropy,
    metric: Metric | None = None,
    optimizer: MakeOptimizer | Literal["sgd", "adamw"] = "sgd",
    lr: float | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    tune: int = 0,
    tune_over: Sequence[str] = ("rho",),
    validation: Samples | None = None,
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
        build_model: Called for each run, after ``torch.manual_seed(seed)``; load pretrained weights in it.
        train: ``(inputs, targets)`` as tensors, a Dataset of such pairs, or a DataLoader, which keeps its batch size.
            Inputs, and whole batches with ``labels``, may be dicts of tensors, as text models take.
        test: The same, to evaluate on.
        methods: Names of ``esam.METHODS``.
        epochs: The length of each run; by default 30, and more on small data: 1,000 steps at least.
        batch_size: By default 128, and less on small data, down to 16; a DataLoader has its own.
        loss: ``(outputs, targets)`` -> one loss per sample.
        metric: ``(outputs, targets)`` -> one number per sample, averaged over the test data. Accuracy needs none.
        optimizer: A function from parameters to a torch optimizer, or "sgd" or "adamw".
        lr: Of "sgd" and "adamw"; 0.1 by default.
        settings: What differs for a method, as in ``{"sam": {"rho": 0.1}}``.
        tune: Trials of each method before the runs, in a folder beside ``out``; 0: none.
        tune_over: What they vary: "rho", "lr", "weight_decay", "epochs"; of an optimizer function's groups by one
            factor.
        validation: What the trials are evaluated on, like ``train``; by default a fifth of it that they leave out.
        classes: The classes' names.
        name: What the report calls the data.
        tell: Called with a line for each epoch; None: silence.
        more: Fields of ``esam.train.Config`` by name: momentum, weight_decay (both of "sgd" and "adamw"), schedule,
            warmup, evaluate_every, budget, precision, device, threads, workers, compile, notes.

    Under torchrun, in a process group of your own, call it on every rank.
    """
    if not tune and (validation is not None or tuple(tune_over) != ("rho",)):
        raise ValueError("tune_over and validation are for a search, and there is none; add tune=4")
    for key in more:
        if key not in FIELDS:
            known = f"There are {', '.join(FIELDS)}"
            raise ValueError(f"compare has no argument {key!r}.{did_you_mean(key, FIELDS)} {known}")
    chosen = {"epochs": epochs, "batch_size": batch_size, "lr": lr, **more}
    chosen = {key: value for key, value in chosen.items() if value is not None}
    for key in ("lr", "momentum", "weight_decay"):
        if key in chosen and not isinstance(optimizer, str):
            raise ValueError(f"{key} is the optimizer's own: set it in the function that makes it")
    fixed_batches = batch_size is not None
    if isinstance(train, DataLoader):
        if fixed_batches:
            raise ValueError("batch_size is the DataLoader's own: set it there")
        sampled = train.batch_size or getattr(train.batch_sampler, "batch_size", None)  # else the mean of its batches
        fixed_batches, chosen["batch_size"] = True, sampled or math.ceil(sample_count(train.dataset) / len(train))
    searched = [key for key in tune_over if key in ("lr", "weight_decay")] if tune else []
    problem = trials = _Problem(build_model, optimizer, metric, searched, *_data(train, test, loss, classes))
    if tune and validation is not None:
        trials = _Problem(build_model, optimizer, metric, searched, *_data(train, validation, loss, classes))
    elif tune:
        trials = problem.held_out()
    config = Config(data=name, **{**problem.described(), **chosen, "notes": tuple(more.get("notes", ()))})
    if isinstance(optimizer, str):
        check_choices(config)
    if config.budget is None:
        samples = sample_count(problem.task.train)
        config = suited(config, samples, epochs=epochs is None, batch_size=not fixed_batches)
    config.check()
    problem.check(config)
    if tune:
        trials.check(config)
    comparison = Comparison(config, tuple(methods), tuple(seeds), settings or {}, tune=tune, tune_over=tuple(tune_over))

    def do(planned: PlannedRun) -> RunRecord:
        def watch(metrics: dict[str, Any]) -> None:
            if tell is not None:
                tell(f"{planned.name}: {epoch_words(metrics, planned.config)}")

        parts, measures = (trials.parts, {}) if planned.config.validation else (problem.parts, problem.measures)
        return run(planned.config, planned.folder, parts=parts, measures=measures, watch=watch)

    ranks = Ranks.current()
    plan(comparison, out)  # refuses before the search what could not be compared after it
    records = [do(planned) for planned in tuned_runs(comparison, out, lambda trials: [*map(do, trials)], tell)]
    return Compared(tuple(records), ranks.from_first(write_report(out) if ranks.first else Path(out)))


def _data(
    train: Samples, test: Samples, loss: Loss, classes: Sequence[str] | None
) -> tuple[Task, Facts, list[DataLoader[Any] | None]]:
    """Return what is trained and tested on, and the loaders that were given for it."""
    if not callable(loss):
        raise ValueError(f"loss must be a function, got {type(loss).__name__}")
    loaders = [samples if isinstance(samples, DataLoader) else None for samples in (train, test)]
    parts = [samples.dataset if isinstance(samples, DataLoader) else samples for samples in (train, test)]
    task = Task(parts[0], parts[1], loss, None if classes is None else tuple(classes))
    return task, data_facts(task), loaders


@dataclass(frozen=True)
class _Problem:
    """A user's model, optimizer and data, made into the parts of runs."""

    build: Callable[[], nn.Module]
    optimizer: MakeOptimizer | str
    metric: Metric | None
    searched: Sequence[str]
    """What a search changes in all groups of the user's optimizer."""
    task: Task
    facts: Facts
    loaders: Sequence[DataLoader[Any] | None]
    """Those that were given for the training and the test data."""

    @property
    def measures(self) -> Mapping[str, Any]:
        """What is measured at the end of a run: what the command measures, where samples can be picked one by one."""
        collated = [loader.collate_fn for loader in self.loaders if loader is not None]
        return MEASURES if all(collate is default_collate for collate in collated) else {}

    def held_out(self) -> _Problem:
        """Return the same with a fifth of the training data in the place of the test data."""
        if self.loaders[0] is not None:
            raise ValueError(
                "tune evaluates on samples that are not trained on, and a DataLoader cannot be divided; give such "
                "samples as validation=, or pass its Dataset instead of the loader"
            )
        task = held_out_task(self.task)
        return replace(self, task=task, facts=data_facts(task))

    def batches(self, config: Config, device: torch.device) -> tuple[Any, Iterable[Batch], Iterable[Batch]]:
        """Return the training batches, the test samples and the training samples once; a loader reads its own."""
        ours = batches_of(config, self.task, device, torch.contiguous_format)
        loaders = (*self.loaders, self.loaders[0])
        train, test, ordered = (
            each if loader is None else SeededLoader(loader, seed=config.seed)
            for each, loader in zip(ours, loaders, strict=True)
        )
        return train, test, ordered

    def described(self) -> dict[str, Any]:
        """Return the names of the model and the optimizer, and the settings that the latter begins with."""
        if isinstance(self.build, nn.Module) or not callable(self.build):
            got = "a model" if isinstance(self.build, nn.Module) else type(self.build).__name__
            raise ValueError(f"build_model must be a function that builds a model, got {got}; write lambda: ...")
        module, function = (getattr(self.build, name, "own") for name in ("__module__", "__qualname__"))
        model = {"model": f"{module}:{function}"}
        if isinstance(self.optimizer, str):
            return {**model, "optimizer": self.optimizer}
        base = self.optimizer(self.model(0).parameters())
        if not isinstance(base, Optimizer):
            raise ValueError(f"optimizer must return a torch optimizer, got {type(base).__name__}")
        begun = {name: float(base.param_groups[0].get(name, 0)) for name in {"lr", *self.searched}}
        return {**model, "optimizer": describe_optimizer(base), **begun}

    def model(self, seed: int) -> nn.Module:
        """Return the model with the initial weights of a seed."""
        torch.manual_seed(seed)
        model = self.build()
        if not isinstance(model, nn.Module):
            raise ValueError(f"build_model must return a torch.nn.Module, got {type(model).__name__}")
        return model

    def check(self, config: Config) -> None:
        """Refuse a model, a loss and data that do not go together."""
        check_data(self.task, self.facts)
        train, *_ = self.batches(config, torch.device("cpu"))
        check_model(self.model(0), self.model(0), next(iter(train.epoch(1))), self.task, self.facts)

    def parts(self, config: Config) -> Parts:
        """Return the parts of one run."""
        device = chosen_device(config.device)
        model = placed(self.model(config.seed), device)
        batches, base = self.batches(config, device), self._base(config, model)
        return assemble(config, self.task, self.facts, model, batches, base=base, metric=self.metric)

    def _base(self, config: Config, model: nn.Module) -> Optimizer | None:
        """Return the user's own optimizer, with what a search has changed in all its groups by the same factor."""
        if isinstance(self.optimizer, str):
            return None
        base = self.optimizer(model.parameters())
        for name in self.searched:
            factor = getattr(config, name) / base.param_groups[0][name]
            for group in base.param_groups:
                group[name] *= factor
        return base


def describe_optimizer(base: Optimizer) -> str:
    """Return an optimizer as it would be written: its class, and what differs from the class's defaults."""
    usual = {name: p.default for name, p in inspect.signature(type(base)).parameters.items()}
    groups = []
    for group in base.param_groups:
        changed = {name: value for name, value in group.items() if name in usual and value != usual[name]}
        values = {"lr": group["lr"], **changed}
        groups.append(", ".join(f"{name}={value}" for name, value in values.items() if name != "params"))
    return f"{type(base).__name__}({'; '.join(groups)})"
