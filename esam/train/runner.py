"""How does a configuration become a finished run with a record: begun, resumed, or extended in its folder?"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from esam.files import folder_lock
from esam.optim import SharpnessAware

from .build import Parts, build_parts
from .checkpoint import Checkpoint, Progress, run_state
from .config import Config, find_method
from .distributed import Ranks
from .evaluation import evaluate
from .loaded_run import BEST_NAME, LAST_NAME, describe_weights, write_weights
from .loop import OnBatch, fit, schedule_of
from .record import RECORD_NAME, RecordWriter, RunRecord, environment, read_record
from .samples import unwrapped
from .task import Facts, changed_data

Measure = Callable[[nn.Module, Any, torch.device], Any]
Observe = Callable[[int, nn.Module, Any], None]


def run(
    config: Config,
    folder: str | Path,
    *,
    measures: Mapping[str, Measure] | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    observe: Observe | None = None,
    keep_weights: bool = False,
    parts: Callable[[Config], Parts] = build_parts,
    on_batch: OnBatch | None = None,
) -> RunRecord:
    """Run a configuration in a folder, or resume it; a run that has come to its end is returned as it is.

    A run whose loss ceases to be finite ends as ``diverged``. More epochs than the folder's run has go on from its end;
    where the learning rate follows the length, that is not what so many epochs from the start would have given, and
    the record says so (``extended``).

    ``measures`` are taken of the trained model at the end, and stand in the record's last line under their names;
    ``watch`` is called with the figures of each epoch, and ``observe`` with the epoch, the model as it is then and the
    data; it must leave the model and the random stream as they are. ``keep_weights`` keeps the best and the last
    weights in files of their own, as ``esam.load_run`` reads them. ``parts`` makes what is trained, and ``on_batch`` is
    called before each batch with its epoch, its number and how many there are.
    """
    global _runs_here
    folder, config, ranks = Path(folder), config.check(), Ranks.current()
    path = folder / RECORD_NAME
    if config.threads:
        torch.set_num_threads(config.threads)
    made = parts(config)

    def ended() -> RunRecord | None:
        return ranks.from_first(ended_record(path, config, made.facts) if ranks.first else None)

    if (record := ended()) is not None:
        return record
    with locked_folder(folder, ranks):
        if (record := ended()) is not None:  # by another process, meanwhile
            return record
        _runs_here += 1
        checkpoint, log, model = Checkpoint(folder), None, unwrapped(made.model)
        if ranks.first:
            first = first_line(config, made.optimizer, made.facts, made.device)
            log = RunLogger(path, config, checkpoint, first, keep_weights=keep_weights)

        def on_epoch(metrics: dict[str, Any]) -> None:
            if log is not None:
                log.epoch(metrics)
                if keep_weights:
                    with made.optimizer.evaluation_weights():
                        log.keep_best(metrics, model)
                if watch is not None:
                    watch(metrics)
                if observe is not None:
                    observe(metrics["epoch"], model, made.task)

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
            if log is not None:
                log.end(progress, trained, tested.get("class_accuracy"), model, made.task, made.device, measures or {})
        over = ranks.from_first(read_record(path) if ranks.first else None)
        assert over is not None, "rank 0 has read it"
        return over


@contextmanager
def locked_folder(folder: Path, ranks: Ranks) -> Iterator[None]:
    """Keep other runs out of the folder; the ranks of this one write through rank 0."""
    if not ranks.first:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):
        yield


def ended_record(path: Path, config: Config, facts: Facts) -> RunRecord | None:
    """Return the record of this run if it has come to its end, None if it has yet to.

    The place of another run is refused, and so are data that are not those the run was trained on. A run that differs
    in nothing but more epochs goes on.
    """
    if not path.exists():
        return None
    record = read_record(path)
    if not (record.epochs or record.finished):  # it failed before its first epoch, and is in nobody's way
        return None
    differing = _differing(record, config)
    if differing and not _only_longer(config, differing):
        differences = ", ".join(
            f"{name} is {there!r} there and {here!r} here" for name, (there, here) in differing.items()
        )
        raise ValueError(f"{path.parent} holds another run: {differences}; choose another folder")
    if differing and record.diverged:
        raise ValueError(
            f"{path.parent} holds a run that diverged in epoch {record.last_epoch}; more epochs cannot help it: lower "
            "lr or rho, in another folder"
        )
    if (how := changed_data(record.data, facts)) is not None:
        raise ValueError(
            f"the data have changed since the run in {path.parent} was trained: {how}; choose another folder, or "
            "delete this one to train again"
        )
    return None if differing or not (record.finished or record.diverged) else record


def open_record(path: Path, config: Config, checkpoint: Checkpoint, first: Mapping[str, Any]) -> RecordWriter:
    """Return a writer that goes on with the record of this run where its checkpoint is, or begins one.

    ``first`` is the first line of a new record.
    """
    state = checkpoint.load()
    if state is not None:
        run_state(state, checkpoint.folder)
    if path.exists() and state is None and not read_record(path).epochs:
        path.unlink()
    if not path.exists():
        if state is not None:
            raise ValueError(f"{checkpoint.folder} holds a checkpoint but no record; delete the folder to start again")
        return RecordWriter.create(path, first)
    record = read_record(path)
    changes: dict[str, Any] = {}
    if _differing(record, config):
        if state is None:
            raise ValueError(f"{path.parent} holds no checkpoint to go on from; train {config.epochs} epochs elsewhere")
        before = [*record.run.get("extended", []), record.config["epochs"]]
        changes = {"config": first["config"], "id": first["id"], "extended": before}
    return RecordWriter.resume(path, epoch=state["progress"]["epoch"] if state else 0, changes=changes)


def _differing(record: RunRecord, config: Config) -> dict[str, tuple[Any, Any]]:
    return Config.from_json(record.config).differences(config)


def _only_longer(config: Config, differing: Mapping[str, tuple[Any, Any]]) -> bool:
    there, here = differing.get("epochs", (0, 0))
    return set(differing) == {"epochs"} and here > there and config.budget is None


class RunLogger:
    """Writes a run's record, and its best and last weights where they are kept; on rank 0 alone.

    The best epoch is that of the highest test accuracy, or of the lowest test loss where there is no accuracy: chosen
    on the test data, so it flatters.
    """

    def __init__(
        self, path: Path, config: Config, checkpoint: Checkpoint, first: Mapping[str, Any], *, keep_weights: bool
    ) -> None:
        self._config, self._writer = config, open_record(path, config, checkpoint, first)
        self._record, self._keep_weights = read_record(path), keep_weights
        self._last: dict[str, Any] = dict(self._record.epochs[-1]) if self._record.epochs else {}
        self._best = max((_score(line) for line in self._record.epochs), default=-math.inf)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Write an epoch's line."""
        self._writer.epoch(**metrics)
        self._last.update(metrics)

    def keep_best(self, metrics: Mapping[str, Any], model: nn.Module) -> None:
        """Keep the weights if no epoch was better."""
        if _score(metrics) > self._best:
            self._best = _score(metrics)
            write_weights(self._record.path.with_name(BEST_NAME), model, describe_weights(self._record, metrics))

    def end(
        self,
        progress: Progress,
        trained: dict[str, float],
        class_accuracy: list[float | None] | None,
        model: nn.Module,
        data: Any,
        device: torch.device,
        measures: Mapping[str, Measure],
    ) -> None:
        """Write the last weights and the last line, with what is measured of the model."""
        figures = results(progress, self._last, trained, device)
        if progress.diverged:
            self._writer.end(status="diverged", error=divergence(self._config, progress), **figures)
            return
        if self._keep_weights:
            write_weights(self._record.path.with_name(LAST_NAME), model, describe_weights(self._record, self._last))
        taken = {name: measure(model, data, device) for name, measure in measures.items()}
        self._writer.end(**figures, **taken, class_accuracy=class_accuracy)


def _score(line: Mapping[str, Any]) -> float:
    """Return how good an epoch was, more being better; minus infinity where it was not evaluated."""
    if line.get("test_accuracy") is not None:
        return float(line["test_accuracy"])
    return -math.inf if line.get("test_loss") is None else -float(line["test_loss"])


def first_line(config: Config, optimizer: SharpnessAware, facts: Facts, device: torch.device) -> dict[str, Any]:
    """Return what a record says at its beginning: what was asked for, what takes effect, on which data, and where."""
    row = find_method(config.method)
    plain = (str, int, float, tuple, type(None))
    base = {name: value for name, value in optimizer.param_groups[0].items() if isinstance(value, plain)}
    return {
        "id": config.id(),
        "name": row.named(type(optimizer.base).__name__),
        "method": config.method,
        "seed": config.seed,
        "config": config.as_json(),
        "effective": {"base": base, "method": row.effective(config.settings)},
        "data": facts,
        "environment": environment(str(device)),
    }


def divergence(config: Config, progress: Progress) -> str:
    """Say where the loss ceased to be finite, and what to change."""
    settings = find_method(config.method).effective(config.settings)
    radius = f" or rho ({settings['rho']:g})" if "rho" in settings else ""
    return f"the loss was not finite in epoch {progress.epoch}; lower lr ({config.lr:g}){radius}"


def results(
    progress: Progress, last: dict[str, Any], trained: dict[str, float], device: torch.device
) -> dict[str, Any]:
    """Return what a record says at its end."""
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
        "peak_memory": _peak_memory(device),
        "forwards": progress.forwards,
        "backwards": progress.backwards,
    }


_runs_here = 0
"""Runs that this process has begun: the peak of its memory is that of the first alone."""


def _peak_memory(device: torch.device) -> int | None:
    """Return the highest memory in use, in bytes: the accelerator's, or this process's in its first run; else None."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if _runs_here > 1:
        return None
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
