"""How does a configuration become a finished run with a record: begun or resumed in its folder?"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from esam.files import folder_lock

from .build import Parts, build_parts
from .checkpoint import Checkpoint, Progress
from .config import Config, find_method
from .distributed import Ranks, unwrapped
from .evaluation import evaluate
from .loop import OnBatch, fit, schedule_of
from .record import RECORD_NAME, RecordWriter, RunRecord, environment, read_record
from .task import Facts, changed_data

Measure = Callable[[nn.Module, Any, torch.device], Any]


def run(
    config: Config,
    folder: str | Path,
    *,
    measures: Mapping[str, Measure] | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    parts: Callable[[Config], Parts] = build_parts,
    on_batch: OnBatch | None = None,
) -> RunRecord:
    """Run a configuration in a folder, or resume it; a run that has come to its end is returned as it is.

    A run whose loss ceases to be finite ends as ``diverged``. ``esam.load_run`` gives the trained model.

    ``measures`` are taken of the trained model at the end, and stand in the record's last line under their names;
    ``watch`` is called with the figures of each epoch. ``parts`` makes what is trained, and ``on_batch`` is called
    before each batch with its epoch, its number and how many there are.
    """
    folder, config, ranks = Path(folder), config.check(), Ranks.current()
    path = folder / RECORD_NAME
    if config.threads:
        torch.set_num_threads(config.threads)
    made = parts(config)
    with folder_lock(folder) if ranks.first else nullcontext():  # the other ranks write through rank 0
        record = ranks.from_first(ended_record(path, config, made.facts) if ranks.first else None)
        if record is not None:
            return record
        checkpoint, model = Checkpoint(folder), unwrapped(made.model)
        writer = open_record(path, checkpoint, first_line(config, made)) if ranks.first else None

        def on_epoch(metrics: dict[str, Any]) -> None:
            if writer is not None:
                writer.epoch(**metrics)
                if watch is not None:
                    watch(metrics)

        progress = fit(
            made.model,
            made.optimizer,
            made.train,
            made.test,
            epochs=config.epochs if config.budget is None else sys.maxsize,
            loss=made.task.loss,
            metric=made.metric,
            schedule=schedule_of(config),
            budget=config.budget,
            precision=config.precision,
            evaluate_every=config.evaluate_every,
            checkpoint=checkpoint,
            on_epoch=on_epoch,
            on_batch=on_batch if ranks.first else None,
            ranks=ranks,
        )
        with made.optimizer.evaluation_weights():
            how: dict[str, Any] = {"loss": made.task.loss, "precision": config.precision, "ranks": ranks}
            trained = evaluate(model, made.ordered, **how)
            progress.diverged |= not math.isfinite(trained["test_loss"])
            tested = {} if progress.diverged else evaluate(model, made.test, by_class=True, **how)
            if writer is not None:
                end = results(progress, read_record(path), trained, made.device)
                if progress.diverged:
                    rho = find_method(config.method).effective(config.settings).get("rho")
                    lower = f"lr ({config.lr:g})" if rho is None else f"lr ({config.lr:g}) or rho ({rho:g})"
                    error = f"the loss was not finite in epoch {progress.epoch}; lower {lower}"
                    end |= {"status": "diverged", "error": error}
                else:
                    end |= {name: measure(model, made.task, made.device) for name, measure in (measures or {}).items()}
                    end["class_accuracy"] = tested["class_accuracy"]
                writer.end(**end)
        record = ranks.from_first(read_record(path) if ranks.first else None)
        assert record is not None, "rank 0 has read it"
        return record


def ended_record(path: Path, config: Config, facts: Facts) -> RunRecord | None:
    """Return the record of this run if it has come to its end, None if it has yet to.

    The folder of another run is refused, and so are other data, or a model of other tensors, than it was trained with.
    """
    if not path.exists():
        return None
    record = read_record(path)
    if not (record.epochs or record.finished):  # it failed before its first epoch, and is in nobody's way
        return None
    if differing := Config.from_json(record.config).differences(config):
        differences = ", ".join(
            f"{name} is {theirs!r} there and {ours!r} here" for name, (theirs, ours) in differing.items()
        )
        raise ValueError(f"{path.parent} holds another run: {differences}; choose another folder")
    if (how := changed_data(record.data, facts)) is not None:
        raise ValueError(
            f"{how}; the run in {path.parent} was trained before that: choose another folder, or delete this one to "
            "train again"
        )
    return record if record.finished or record.diverged else None


def open_record(path: Path, checkpoint: Checkpoint, first: Mapping[str, Any]) -> RecordWriter:
    """Return a writer that goes on with the record where the checkpoint is; or begins one, with this first line."""
    state = checkpoint.load()
    if state is None:
        path.unlink(missing_ok=True)
        return RecordWriter.create(path, first)
    if not path.exists():
        raise ValueError(f"{checkpoint.folder} holds a checkpoint but no record; delete the folder to start again")
    return RecordWriter.resume(path, epoch=state["progress"]["epoch"])


def first_line(config: Config, made: Parts) -> dict[str, Any]:
    """Return what a record says at its beginning: what was asked for, what takes effect, on which data, and where."""
    row = find_method(config.method)
    plain = (str, int, float, tuple, type(None))
    base = {name: value for name, value in made.optimizer.param_groups[0].items() if isinstance(value, plain)}
    return {
        "id": config.id(),
        "name": row.named(type(made.optimizer.base).__name__),
        "method": config.method,
        "seed": config.seed,
        "config": config.as_json(),
        "effective": {"base": base, "method": row.effective(config.settings)},
        "data": made.facts,
        "environment": environment(str(made.device)),
    }


def results(progress: Progress, record: RunRecord, trained: dict[str, float], device: torch.device) -> dict[str, Any]:
    """Return what a record says at its end."""
    last = record.epochs[-1] if record.epochs else {}
    known = "test_accuracy" in trained  # else the targets are no classes
    return {
        "test_accuracy": {"last": last.get("test_accuracy"), "best": progress.best if known else None},
        "test_loss": last.get("test_loss"),
        **({"test_metric": last["test_metric"]} if last.get("test_metric") is not None else {}),
        "train_loss": trained["test_loss"],
        "train_accuracy": trained.get("test_accuracy"),
        "images_per_second": progress.images / progress.seconds if progress.seconds else None,
        "seconds": progress.seconds,
        "cpu_seconds": progress.cpu_seconds,
        "peak_memory": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "forwards": progress.forwards,
        "backwards": progress.backwards,
    }
