"""How are methods compared on a model, data, loss and optimizer that exist in Python alone?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from esam.report import MethodSummary, summarise, write_report
from esam.report.advice import advice
from esam.report.results import results_sheet
from esam.report.sheets import as_text
from esam.report.tuned import tried_sheet
from esam.report.words import sentences
from esam.train.config import Config
from esam.train.evaluation import Loss, Metric, per_sample_cross_entropy
from esam.train.names import did_you_mean
from esam.train.ranks import Ranks
from esam.train.record import RunRecord
from esam.train.runs import run

from .given import Given, OptimizerFactory, Own
from .plan import DEFAULT_METHODS, Comparison, PlannedRun, plan
from .tune import tell_search
from .tune import tune as search

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
    tune: int = 0,
    tune_over: Sequence[str] = ("rho",),
    validation: Given | None = None,
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
            Inputs, and whole batches with ``labels``, may be dicts of tensors, as text models take.
        test: The same, to evaluate on.
        methods: Names of ``esam.METHODS``.
        loss: ``(outputs, targets)`` -> one loss per sample.
        metric: ``(outputs, targets)`` -> one number per sample, averaged over the test data. Accuracy needs none.
        optimizer: A function from parameters to a torch optimizer, or "sgd" or "adamw" with ``lr=`` and so on.
        settings: What differs for a method, as in ``{"sam": {"rho": 0.1}}``.
        classes: The classes' names.
        name: What the report calls the data.
        tune: Trials of each method before the runs, in a folder beside ``out``; 0: none.
        tune_over: What they look for: "rho", "lr", "weight_decay"; of an optimizer function's groups by one factor.
        validation: What the trials are evaluated on, like ``train``; by default a fifth of it that they leave out.
        tell: Called with a line for each epoch; None: silence.
        more: Fields of ``esam.train.Config``: batch_size, evaluate_every, lr, momentum, weight_decay, schedule, budget,
            precision, device, threads, strategy, workers, compile, checkpointing, notes.

    Under torchrun, in a process group of your own, call it on every rank.
    """
    _check_words(more, train, optimizer)
    if not tune and (validation is not None or tuple(tune_over) != ("rho",)):
        raise ValueError("tune_over and validation are for a search, and there is none; add tune=4")
    over = tuple(tune_over) if tune else ()
    own = Own(build_model, train, test, loss, metric, optimizer, classes, validation=validation, tune_over=over)
    config = own.configured(Config(data=name, epochs=epochs, **more)).check()
    comparison = Comparison(config, tuple(methods), tuple(seeds), settings or {})

    def launch(runs: Sequence[PlannedRun]) -> list[RunRecord]:
        return [
            run(
                planned.config,
                planned.folder,
                parts=own.parts,
                measures={} if planned.config.validation else {"sharpness": own.sharpness},
                watch=None if tell is None else _teller(tell, planned.config),
                keep_weights=not planned.config.validation,
            )
            for planned in runs
        ]

    ranks = Ranks.current()
    plan(comparison, out)  # refuses before the search what could not be compared after it
    if tune:
        beside = Path(out).with_name(f"{Path(out).name}-tuning")
        comparison, _ = search(comparison, beside, tune, launch, tune_over)
        if tell is not None and ranks.first:
            tell(as_text(tried_sheet(comparison.tuned)))
    runs = plan(comparison, out)
    if ranks.first:
        tell_search(runs)
    records = launch(runs)
    return Compared(tuple(records), ranks.from_first(write_report(out) if ranks.first else Path(out)))


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
