"""``esam train``: one run, with checkpoints and a record."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from esam.train.config import Config

from .parsing import parse_run, take_recipe

if TYPE_CHECKING:
    from esam.compare.plan import Comparison


@dataclass(frozen=True)
class TrainOptions:
    """One run. Killed or interrupted, the same command resumes."""

    config: tyro.conf.OmitArgPrefixes[Config]
    out: Path = Path("runs/train")
    """Folder of the record and the checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder (needs the extra `tensorboard`)."""


def train(arguments: list[str]) -> None:
    """``esam train``: one run."""
    recipe = take_recipe(arguments)
    options, config = parse_run("train", TrainOptions, arguments, recipe.config if recipe else Config())
    config = config if recipe is None else _of_recipe(recipe, config)
    from rich.console import Console

    from esam.train.runs import run
    from esam.train.trained import MEASURES

    watchers: list[Callable[[dict[str, Any]], None]] = [_print_epoch]
    if options.tensorboard and int(os.environ.get("RANK", "0")) == 0:
        from esam.train.tensorboard import event_writer

        watchers.append(event_writer(options.out))

    def watch(metrics: dict[str, Any]) -> None:
        for watcher in watchers:
            watcher(metrics)

    record = run(config, options.out, measures=MEASURES, watch=watch, keep_weights=True)
    assert record.end is not None, "a run that is over has an end"
    if record.diverged:
        raise RuntimeError(f"{record.name} diverged: {record.end['error']}; record in {options.out}")
    last, best = (record.end["test_accuracy"][which] for which in ("last", "best"))
    told = "no epoch trained" if last is None else f"test accuracy {100 * last:.2f} % (best {100 * best:.2f} %)"
    if last is None and record.end["test_loss"] is not None:  # the targets are no classes
        told = f"test loss {record.end['test_loss']:.4g}"
    Console().print(f"{record.name}: {told}, record in {options.out}", highlight=False, markup=False, soft_wrap=True)


def _of_recipe(recipe: Comparison, asked: Config) -> Config:
    """Return the recipe's run of the method that was asked for, with whatever else was asked for in place."""
    from esam.compare.plan import configured

    whole = configured(recipe, asked.method, asked.seed)
    given = {name: value for name, value in vars(asked).items() if value != getattr(recipe.config, name)}
    own = {name: v for name, v in asked.settings.items() if recipe.config.settings.get(name) != v}
    return replace(whole, **{**given, "settings": {**whole.settings, **own}})


def _print_epoch(metrics: dict[str, Any]) -> None:
    accuracy = metrics.get("test_accuracy")
    tail = f", test accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
    print(f"epoch {metrics['epoch']}: train loss {metrics['train_loss']:.4f}{tail}", flush=True)
