"""``esam train``: one run, with checkpoints and a record."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .parsing import parse_run, single_run

if TYPE_CHECKING:
    from esam.train.config import Config
    from esam.train.record import RunRecord


@dataclass(frozen=True)
class TrainOptions:
    """One run. Killed or interrupted, the same command resumes."""

    out: Path = Path("runs/train")
    """Folder of the record and the checkpoints."""
    quiet: bool = False
    """Print the result alone."""
    track: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Also write the figures of each epoch by these libraries (extras of the same names), into the run's folder."""


def train(arguments: list[str]) -> None:
    """``esam train``: one run."""
    options, comparison, typed = parse_run("train", TrainOptions, arguments)
    config = single_run(comparison, typed)
    from rich.console import Console

    from esam.extras import require
    from esam.runs.live import print_line
    from esam.runs.plan import PlannedRun
    from esam.runs.preflight import check
    from esam.train.trackers import TRACKERS

    check([PlannedRun(config, options.out)], options.out, report=False)
    for name in options.track:
        require(*TRACKERS[name][1], purpose=f"--track {name}")
    record = _trained(config, options)
    assert record.end is not None, "a run that is over has an end"
    if record.diverged:
        raise RuntimeError(f"{record.name} diverged: {record.end['error']}; record in {options.out}")
    last, best = (record.end["test_accuracy"][which] for which in ("last", "best"))
    told = "no epoch trained" if last is None else f"test accuracy {100 * last:.2f} % (best {100 * best:.2f} %)"
    if last is None and record.end["test_loss"] is not None:  # the targets are no classes
        told = f"test loss {record.end['test_loss']:.4g}"
    print_line(Console(), f"{record.name}: {told}, record in {options.out}")


def _trained(config: Config, options: TrainOptions) -> RunRecord:
    """Train, or resume; on several ranks the first alone shows and tracks what happens."""
    from rich.console import Console

    from esam.runs.live import RunView
    from esam.train.distributed import Ranks
    from esam.train.loaded_run import MEASURES
    from esam.train.runner import run
    from esam.train.task import user_code_line
    from esam.train.trackers import TRACKERS, Log

    logs: list[Log] = []
    with ExitStack() as stack:
        view = stack.enter_context(RunView(config, Console(quiet=options.quiet or not Ranks.current().first)))

        def watch(metrics: dict[str, Any]) -> None:  # of the first rank
            view.epoch(metrics)
            if not logs:  # a tracker writes nothing before the first epoch
                logs.extend(stack.enter_context(TRACKERS[name][0](options.out, config)) for name in options.track)
            numbers = {n: v for n, v in metrics.items() if isinstance(v, (int, float)) and math.isfinite(v)}
            del numbers["epoch"]
            for log in logs:
                log(numbers, metrics["epoch"])

        try:
            return run(config, options.out, measures=MEASURES, watch=watch, on_batch=view.batch)
        except Exception as error:  # of any kind: the model, the data and the loss may be the user's
            if place := user_code_line(error):
                raise RuntimeError(f"{type(error).__name__}{place}: {error}") from error
            raise
