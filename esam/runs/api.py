"""How are methods compared on a model, data, loss and optimizer that exist in Python alone?"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from esam.analysis import ModelObjective, sharpness
from esam.report import MethodSummary, answer_text, summarise, write_report
from esam.report.results import tried_sheet
from esam.report.sheets import as_text
from esam.report.summaries import QUALITY
from esam.train.batches import Batches, SeededLoader
from esam.train.build import EVALUATION_BATCH, Parts, build_parts, check_choices
from esam.train.config import Config, suited
from esam.train.distributed import Ranks
from esam.train.evaluation import Loss, Metric, per_sample_cross_entropy
from esam.train.loaded_run import IMAGES, MEASURES, RHO, training_sharpness
from esam.train.record import RunRecord
from esam.train.runner import Measure, run
from esam.train.samples import Batch, Inputs, InputsAdapter, on_device, sample_count
from esam.train.task import Facts, Task, data_facts, held_out_task

from .live import epoch_words
from .plan import DEFAULT_METHODS, Comparison, PlannedRun, plan
from .preflight import UNSEEDED, class_count_of, faults_of_data, faults_of_fit, same_weights, warn_of_untested_classes
from .tuning import tune as search
from .tuning import write_search

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
Samples = tuple[Inputs, Tensor] | Dataset[Any] | DataLoader[Any]
"""Inputs and targets as tensors, a Dataset of such pairs, or a DataLoader; inputs may be tensors by name."""


@dataclass(frozen=True)
class Compared:
    """The result of a comparison; printed, it is the table and a sentence about each method."""

    records: tuple[RunRecord, ...]
    report: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict for each method: name, number of seeds, and mean and spread (standard deviation) of each figure.

        A spread is None with fewer than two seeds, a figure None where the runs have none.
        """
        return [_row(one) for methods in summarise(self.records).values() for one in methods]

    @property
    def means(self) -> dict[str, float | None]:
        """The mean test accuracy of each method, or its test loss where the targets are not classes."""
        return self._headline()

    @property
    def spreads(self) -> dict[str, float | None]:
        """The standard deviation over seeds of what ``means`` gives."""
        return self._headline("_std")

    def _headline(self, suffix: str = "") -> dict[str, float | None]:
        named = [("test_loss" if row["test_accuracy"] is None else "test_accuracy", row) for row in self.rows]
        return {row["method"]: row[f"{name}{suffix}"] for name, row in named}

    def dataframe(self) -> Any:
        """Return ``rows`` as a pandas DataFrame, indexed by method; needs pandas."""
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(self.rows).set_index("method")

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
    optimizer: OptimizerFactory | Literal["sgd", "adamw"] = "sgd",
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    schedule: Literal["cosine", "constant"] = "cosine",
    warmup: float = 0.0,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    tune: int = 0,
    tune_over: Sequence[str] = ("rho",),
    validation: Samples | None = None,
    classes: Sequence[str] | None = None,
    name: str = "own",
    out: str | Path = "runs/compare",
    tell: Callable[[str], None] | None = print,
    evaluate_every: int = 1,
    budget: float | None = None,
    precision: Literal["float32", "bf16", "fp16"] = "float32",
    device: str = "auto",
    threads: int | None = None,
    workers: int | None = None,
    compile: bool = False,
    notes: Sequence[str] = (),
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
        optimizer: A function from parameters to a torch optimizer, or "sgd" or "adamw" with the next three.
        lr: 0.1 by default.
        momentum: 0.9 by default, for sgd.
        weight_decay: 5e-4 by default.
        schedule: The learning rate falls along a cosine, or is constant.
        warmup: Epochs over which the learning rate rises from 0.
        settings: What differs for a method, as in ``{"sam": {"rho": 0.1}}``.
        tune: Trials of each method before the runs, in a folder beside ``out``; 0: none.
        tune_over: What they vary: "rho", "lr", "weight_decay", "epochs"; of an optimizer function's groups by one
            factor.
        validation: What the trials are evaluated on, like ``train``; by default a fifth of it that they leave out.
        classes: The classes' names.
        name: What the report calls the data.
        tell: Called with a line for each epoch; None: silence.
        evaluate_every: Evaluate after every so many epochs, and after the last.
        budget: Stop after this many seconds of training instead of after the epochs.
        precision: float32, bf16 or fp16, by autocast.
        device: "auto" takes an accelerator if there is one.
        threads: CPU threads; None: torch's choice.
        workers: Processes that read a Dataset ahead of need.
        compile: Compile the model.
        notes: Remarks for the report.

    Under torchrun, in a process group of your own, call it on every rank.
    """
    _check_arguments(train, optimizer, batch_size, lr=lr, momentum=momentum, weight_decay=weight_decay)
    if not tune and (validation is not None or tuple(tune_over) != ("rho",)):
        raise ValueError("tune_over and validation are for a search, and there is none; add tune=4")
    over = tuple(tune_over) if tune else ()
    given = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "momentum": momentum, "weight_decay": weight_decay}
    problem = UserProblem(build_model, train, test, loss, metric, optimizer, classes, validation, over)
    config = Config(
        data=name,
        evaluate_every=evaluate_every,
        schedule=schedule,
        warmup=warmup,
        budget=budget,
        precision=precision,
        device=device,
        threads=threads,
        workers=workers,
        compile=compile,
        notes=tuple(notes),
        **{key: value for key, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    config = problem.configured(config)
    if budget is None:
        own_batches = batch_size is not None or isinstance(train, DataLoader)
        config = suited(config, problem.samples, epochs=epochs is None, batch_size=not own_batches)
    config.check()
    comparison = Comparison(config, tuple(methods), tuple(seeds), settings or {})
    for fault in problem.faults(config):
        raise ValueError(fault)

    def launch(runs: Sequence[PlannedRun]) -> list[RunRecord]:
        return [
            run(
                planned.config,
                planned.folder,
                parts=problem.parts,
                measures={} if planned.config.validation else problem.measures,
                watch=None if tell is None else _teller(tell, planned),
                keep_weights=not planned.config.validation,
            )
            for planned in runs
        ]

    ranks = Ranks.current()
    plan(comparison, out)  # refuses before the search what could not be compared after it
    if tune:
        beside = Path(out).with_name(f"{Path(out).name}-tuning")
        comparison = search(comparison, beside, tune, launch, tune_over)
        if tell is not None and ranks.first:
            tell(as_text(tried_sheet(comparison.tuned)))
    runs = plan(comparison, out)
    if ranks.first:
        write_search(runs)
    records = launch(runs)
    return Compared(tuple(records), ranks.from_first(write_report(out) if ranks.first else Path(out)))


class _Split(NamedTuple):
    train: Samples
    test: Samples
    task: Task
    facts: Facts


class UserProblem:
    """A user's model, data, loss and optimizer, made into the parts of runs."""

    def __init__(
        self,
        build_model: Callable[[], nn.Module],
        train: Samples,
        test: Samples,
        loss: Loss,
        metric: Metric | None,
        optimizer: OptimizerFactory | str,
        classes: Sequence[str] | None,
        validation: Samples | None = None,
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
        """Return the configuration with the model and the optimizer described by their names and settings."""
        model, batch = self._model(0), getattr(self._splits[False].train, "batch_size", None)
        module, function = (getattr(self._build, name, "own") for name in ("__module__", "__qualname__"))
        described: dict[str, Any] = {"model": f"{module}:{function}"}
        if batch is not None:
            described["batch_size"] = batch
        if isinstance(self._optimizer, str):
            config = dataclasses.replace(config, optimizer=self._optimizer, **described)  # type: ignore[arg-type]
            check_choices(config)
            return config
        base = self._optimizer(model.parameters())
        if not isinstance(base, Optimizer):
            raise ValueError(f"optimizer must return a torch optimizer, got {type(base).__name__}")
        started = {name: float(base.param_groups[0].get(name, 0)) for name in {"lr", *self._searched}}
        return dataclasses.replace(config, optimizer=describe_optimizer(base), **started, **described)  # type: ignore[arg-type]

    @property
    def samples(self) -> int:
        """How many samples there are to train on."""
        return sample_count(self._splits[False].task.train)

    def faults(self, config: Config) -> list[str]:
        """Return why model, loss and data do not go together."""
        split, model = self._splits[False], self._model(0)
        if faults := faults_of_data(split.task):
            return faults
        if not same_weights(model, self._model(0)):
            return [UNSEEDED]
        warn_of_untested_classes(split.facts)
        classes = class_count_of(split.facts) if self._loss is per_sample_cross_entropy else None
        train, _ = self._batches(split.train, config, torch.device("cpu"))
        return faults_of_fit(model, next(iter(train.epoch(1))), self._loss, classes)

    def parts(self, config: Config) -> Parts:
        """Return the parts of one run."""
        split, model = self._splits[config.validation], self._model(config.seed)

        def batches(task: Task, device: torch.device) -> tuple[Any, Iterable[Batch], Iterable[Batch]]:
            train, ordered = self._batches(split.train, config, device)
            return train, self._batches(split.test, config, device)[1], ordered

        return build_parts(
            config,
            split.task,
            facts={**split.facts, "model": _shape_of(model)},
            model=model,
            base=lambda placed: self._base(config, placed),
            metric=self._metric,
            batches=batches,
        )

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What is measured at the end of a run: what the command measures, where samples can be picked one by one."""
        split = self._splits[False]
        picked = not isinstance(split.train, DataLoader) and not isinstance(split.test, DataLoader)
        return MEASURES if picked else {"sharpness": self._sharpness}

    def _sharpness(self, model: nn.Module, task: Task, device: torch.device) -> float:
        if not isinstance(self._splits[False].train, DataLoader):
            return training_sharpness(model, task, device)
        _, ordered = self._batches(self._splits[False].train, Config(), device)
        objective = ModelObjective(InputsAdapter(model), _some(ordered, IMAGES, device), self._loss)
        return sharpness(objective, objective.parameters, rho=RHO)

    def _split(self, train: Samples, test: Samples) -> _Split:
        parts = [given.dataset if isinstance(given, DataLoader) else given for given in (train, test)]
        task = Task(parts[0], parts[1], self._loss, self._classes)
        return _Split(train, test, task, data_facts(task))

    def _held_out(self, train: Samples) -> _Split:
        if isinstance(train, DataLoader):
            raise ValueError(
                "tune evaluates on samples that are not trained on, and a DataLoader cannot be divided; give such "
                "samples as validation=, or pass its Dataset instead of the loader"
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

    def _batches(self, given: Samples, config: Config, device: torch.device) -> tuple[Any, Iterable[Batch]]:
        """Return batches to train by, and the same samples once, to evaluate on."""
        if isinstance(given, DataLoader):
            seeded = SeededLoader(given, seed=config.seed)
            return seeded, seeded
        shuffled = Batches(given, config.batch_size, seed=config.seed, device=device, workers=config.workers)
        return shuffled, Batches(given, EVALUATION_BATCH, device=device, workers=config.workers)


def describe_optimizer(base: Optimizer) -> str:
    """Return an optimizer as it would be written: its class, and what differs from the class's defaults."""
    usual = {name: p.default for name, p in inspect.signature(type(base)).parameters.items()}
    groups = []
    for group in base.param_groups:
        changed = {name: value for name, value in group.items() if name in usual and value != usual[name]}
        values = {"lr": group["lr"], **changed}
        groups.append(", ".join(f"{name}={value}" for name, value in values.items() if name != "params"))
    return f"{type(base).__name__}({'; '.join(groups)})"


def _check_arguments(
    train: Samples, optimizer: OptimizerFactory | str, batch_size: int | None, **of_optimizer: float | None
) -> None:
    """Refuse an argument that would have no effect."""
    for name, value in of_optimizer.items():
        if value is not None and not isinstance(optimizer, str):
            raise ValueError(f"{name} is the optimizer's own: set it in the function that makes it")
    if batch_size is not None and isinstance(train, DataLoader):
        raise ValueError("batch_size is the DataLoader's own: set it there")


def _shape_of(model: nn.Module) -> str:
    """Return what changes when the model does: a hash of the names, shapes and types of its tensors."""
    shapes = [
        f"{name} {tuple(value.shape)} {value.dtype}"
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    ]
    return hashlib.sha256("\n".join(shapes).encode()).hexdigest()[:16]


def _some(batches: Iterable[Batch], most: int, device: torch.device) -> Iterator[Batch]:
    seen = 0
    for x, y in batches:
        if seen >= most:
            return
        seen += len(y)
        yield on_device(x, device), y.to(device)


def _teller(tell: Callable[[str], None], planned: PlannedRun) -> Callable[[dict[str, Any]], None]:
    return lambda metrics: tell(f"{planned.name}: {epoch_words(metrics, planned.config)}")


def _row(one: MethodSummary) -> dict[str, Any]:
    row: dict[str, Any] = {"method": one.group.method, "name": one.name, "n": one.n, "diverged": one.diverged}
    for name in ("accuracy", *QUALITY, "seconds", "cpu_seconds"):
        measured, key = getattr(one, name), "test_accuracy" if name == "accuracy" else name
        row[key], row[f"{key}_std"] = (None, None) if measured is None else (measured.mean, measured.std)
    return row
