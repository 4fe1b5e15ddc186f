"""``esam train``: one run, with checkpoints and a record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .parsing import parse_run, single_run


@dataclass(frozen=True)
class TrainOptions:
    """One run. Killed or interrupted, the same command resumes."""

    out: Path = Path("runs/train")
    """Folder of the record and the checkpoints."""
    quiet: bool = False
    """Print the result alone."""


def train(arguments: list[str]) -> None:
    """``esam train``: one run."""
    options, comparison, typed = parse_run("train", TrainOptions, arguments)
    config = single_run(comparison, typed)
    from rich.console import Console

    from esam.runs.live import RunView, print_line
    from esam.runs.plan import PlannedRun
    from esam.runs.preflight import check
    from esam.train.distributed import Ranks
    from esam.train.loaded_run import MEASURES
    from esam.train.runner import run
    from esam.train.task import user_code_line

    check([PlannedRun(config, options.out)], options.out, report=False)
    with RunView(config, Console(quiet=options.quiet or not Ranks.current().first)) as view:
        try:
            record = run(config, options.out, measures=MEASURES, watch=view.epoch, on_batch=view.batch)
        except Exception as error:  # of any kind: the model, the data and the loss may be the user's
            if place := user_code_line(error):
                raise RuntimeError(f"{type(error).__name__}{place}: {error}") from error
            raise
    assert record.end is not None, "a run that is over has an end"
    if record.diverged:
        raise RuntimeError(f"{record.name} diverged: {record.end['error']}; record in {options.out}")
    last, best = (record.end["test_accuracy"][which] for which in ("last", "best"))
    outcome = "no epoch trained" if last is None else f"test accuracy {100 * last:.2f} % (best {100 * best:.2f} %)"
    if last is None and record.end["test_loss"] is not None:  # the targets are no classes
        outcome = f"test loss {record.end['test_loss']:.4g}"
    print_line(Console(), f"{record.name}: {outcome}, record in {options.out}")
