"""``esam train``: one run, with checkpoints and a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from esam.train.config import Config

from .parsing import parse, take_recipe


@dataclass(frozen=True)
class TrainOptions:
    """One run. Killed or interrupted, the same command goes on where it was."""

    config: tyro.conf.OmitArgPrefixes[Config]
    out: Path = Path("runs/train")
    """Folder of the record and the checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder (needs the extra `tensorboard`)."""


def train(arguments: list[str]) -> None:
    """``esam train``: one run."""
    recipe = take_recipe(arguments)
    options = parse("train", TrainOptions, arguments, config=recipe.config if recipe else Config())
    from rich.console import Console

    from esam.train.runs import run
    from esam.train.trained import MEASURES

    watchers: list[Callable[[dict[str, Any]], None]] = [_print_epoch]
    if options.tensorboard:
        from esam.train.tensorboard import event_writer

        watchers.append(event_writer(options.out))

    def watch(metrics: dict[str, Any]) -> None:
        for watcher in watchers:
            watcher(metrics)

    record = run(options.config, options.out, measures=MEASURES, watch=watch)
    assert record.end is not None, "a finished run has an end"
    last, best = (record.end["test_accuracy"][which] for which in ("last", "best"))
    told = "no epoch trained" if last is None else f"test accuracy {100 * last:.2f} % (best {100 * best:.2f} %)"
    Console().print(f"{record.name}: {told}, record in {options.out}", highlight=False, markup=False, soft_wrap=True)


def _print_epoch(metrics: dict[str, Any]) -> None:
    accuracy = metrics.get("test_accuracy")
    tail = f", test accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
    print(f"epoch {metrics['epoch']}: train loss {metrics['train_loss']:.4f}{tail}", flush=True)
