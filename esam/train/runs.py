"""How does a configuration become a finished run with a record?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from esam.files import folder_lock
from esam.optim import SharpnessAware

from .checkpoint import Checkpoint
from .config import Config, find_method
from .data import Batches, Data, load_data
from .evaluation import Loss, evaluate, per_sample_cross_entropy
from .loop import Schedule, cosine, evaluation_weights, fit
from .models import build_model, fastest_memory_format
from .names import did_you_mean
from .record import RECORD_NAME, RecordWriter, RunRecord, environment, read_record
from .resume import Progress
from .task import Task, TaskBatches, class_count, image_shape, is_factory, load_task, make_model

BASE_TITLES = {"sgd": "SGD", "adamw": "AdamW"}
SCHEDULES: dict[str, Schedule | None] = {"cosine": cosine, "constant": None}
EVALUATION_BATCH = 500

Measure = Callable[[nn.Module, Any, torch.device], Any]
Observe = Callable[[int, nn.Module, Any], None]


def title(config: Config) -> str:
    """Return the name that people read: SGD, SAM, ESAM ..."""
    _check_choice("optimizer", config.optimizer, BASE_TITLES)
    return find_method(config.method).named(BASE_TITLES[config.optimizer])


def build_optimizer(config: Config, model: nn.Module, *, total_steps: int | None = None) -> SharpnessAware:
    """Return the configured method around the configured base optimizer.

    A method that follows training is told its length in steps, unless the settings tell it another.
    """
    method = find_method(config.method)
    for name in config.settings:
        if name not in method.options():
            takes = ", ".join(method.options()) or "none"
            raise ValueError(f"{config.method} takes no {name}; its settings: {takes}")
    _check_choice("optimizer", config.optimizer, BASE_TITLES)
    base: Optimizer
    if config.optimizer == "sgd":
        base = torch.optim.SGD(
            model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
    else:
        base = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    length = {"total_steps": total_steps} if total_steps is not None and "total_steps" in method.options() else {}
    return method(base, model, seed=config.seed, **{**length, **config.settings})


def run(
    config: Config,
    folder: str | Path,
    *,
    measures: Mapping[str, Measure] | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    observe: Observe | None = None,
) -> RunRecord:
    """Run a configuration in a folder, or resume it; a finished run is returned as it is.

    ``measures`` are taken of the trained model at the end, and stand in the record's last line under their names;
    ``watch`` is called with the figures of each epoch, and ``observe`` with the epoch, the model as it is then and the
    data; it must leave the model and the random stream as they are.
    """
    folder = Path(folder)
    path = folder / RECORD_NAME
    if (finished := _finished(path, config)) is not None:
        return finished
    _check_choice("schedule", config.schedule, SCHEDULES)
    if config.threads:
        torch.set_num_threads(config.threads)
    device = chosen_device(config.device)
    data = configured_task(config) if is_factory(config.data) else configured_data(config)
    loss: Loss = data.loss if isinstance(data, Task) else per_sample_cross_entropy
    model = prepared_model(config, data, device)
    train, test, ordered = batches_of(config, data, device, fastest_memory_format(model))
    steps = config.epochs * len(train) if config.budget is None else None
    optimizer = build_optimizer(config, model, total_steps=steps)
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):
        if (finished := _finished(path, config)) is not None:  # by another process, meanwhile
            return finished
        if path.exists() and not _same_run(read_record(path), config):
            path.unlink()  # it failed before its first epoch, and must not be in the way of the next try
        checkpoint = Checkpoint(folder)
        writer = _writer(path, config, checkpoint, device)
        last: dict[str, Any] = dict(read_record(path).epochs[-1]) if read_record(path).epochs else {}

        def on_epoch(metrics: dict[str, Any]) -> None:
            writer.epoch(**metrics)
            last.update(metrics)
            if watch is not None:
                watch(metrics)
            if observe is not None:
                observe(metrics["epoch"], model, data)

        progress = fit(
            model,
            optimizer,
            train,
            test,
            epochs=config.epochs if config.budget is None else sys.maxsize,
            loss=loss,
            schedule=SCHEDULES[config.schedule],
            budget=config.budget,
            precision=config.precision,
            evaluate_every=config.evaluate_every,
            checkpoint=checkpoint,
            on_epoch=on_epoch,
        )
        with evaluation_weights(optimizer):
            trained = evaluate(model, ordered, loss, precision=config.precision)
            taken = {name: measure(model, data, device) for name, measure in (measures or {}).items()}
        writer.end(**_results(progress, last, trained, device), **taken)
        return read_record(path)


def _finished(path: Path, config: Config) -> RunRecord | None:
    """Return the record of this run if it is finished; refuse the place of another run."""
    if not path.exists():
        return None
    record = read_record(path)
    if _same_run(record, config):
        return record if record.finished else None
    if record.epochs or record.finished:
        raise ValueError(f"{path.parent} holds another run: its configuration differs; choose another folder")
    return None


def _same_run(record: RunRecord, config: Config) -> bool:
    return Config.from_json(record.config).identity() == config.identity()


def configured_data(config: Config) -> Data:
    """Return the configured images and labels."""
    return load_data(
        config.data,
        label_column=config.label_column,
        image_column=config.image_column,
        train_size=config.train_size,
        label_noise=config.label_noise,
        size=config.size,
        validation=config.validation,
    )


def configured_task(config: Config) -> Task:
    """Return the configured data of the user's own."""
    return load_task(
        config.data, train_size=config.train_size, label_noise=config.label_noise, validation=config.validation
    )


def prepared_model(config: Config, data: Data | Task, device: torch.device) -> nn.Module:
    """Return the configured model with its initial weights, on the device and in its fastest layout."""
    torch.manual_seed(config.seed)
    if is_factory(config.model):
        model = make_model(config.model, data)
    else:
        channels, height, _ = image_shape(data) if isinstance(data, Task) else data.train.shape
        classes = class_count(data) if isinstance(data, Task) else len(data.classes)
        model = build_model(config.model, classes=classes, channels=channels, size=height)
    return model.to(device=device, memory_format=fastest_memory_format(model))  # type: ignore[call-overload,no-any-return]


class _InOrder:
    """A split, once in order, as often as it is asked for."""

    def __init__(self, batches: Batches | TaskBatches) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return self._batches.in_order()


def batches_of(
    config: Config, data: Data | Task, device: torch.device, memory_format: torch.memory_format
) -> tuple[Batches | TaskBatches, _InOrder, _InOrder]:
    """Return the training batches, the test set in order, and the training set in order."""
    if isinstance(data, Task):
        where = {"device": device, "memory_format": memory_format}
        shuffled = TaskBatches(data.train, config.batch_size, seed=config.seed, **where)  # type: ignore[arg-type]
        parts = [TaskBatches(part, EVALUATION_BATCH, **where) for part in (data.test, data.train)]  # type: ignore[arg-type]
        return shuffled, _InOrder(parts[0]), _InOrder(parts[1])
    common = {"mean": data.mean, "std": data.std, "device": device, "memory_format": memory_format}
    train = Batches(data.train, config.batch_size, augment=config.augment, seed=config.seed, **common)  # type: ignore[arg-type]
    test = Batches(data.test, EVALUATION_BATCH, **common)  # type: ignore[arg-type]
    ordered = Batches(data.train, EVALUATION_BATCH, **common)  # type: ignore[arg-type]
    return train, _InOrder(test), _InOrder(ordered)


def chosen_device(name: str) -> torch.device:
    """Return the device of that name; ``auto``: an accelerator if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be auto, cpu or one that torch finds here, got {name!r} ({error})") from error


def _check_choice(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.{did_you_mean(value, known)}")


def _writer(path: Path, config: Config, checkpoint: Checkpoint, device: torch.device) -> RecordWriter:
    state = checkpoint.load()
    if path.exists():
        return RecordWriter.resume(path, epoch=state["progress"]["epoch"] if state else 0)
    if state is not None:
        raise ValueError(f"{checkpoint.folder} holds a checkpoint but no record; delete the folder to start again")
    first = {"id": config.id(), "name": title(config), "method": config.method, "seed": config.seed}
    told = {"config": config.as_json(), "environment": environment(str(device))}
    return RecordWriter.create(path, {**first, **told})


def _results(
    progress: Progress, last: dict[str, Any], trained: dict[str, float], device: torch.device
) -> dict[str, Any]:
    known = "test_accuracy" in trained  # else the targets are no classes
    return {
        "test_accuracy": {"last": last.get("test_accuracy"), "best": progress.best if known else None},
        "test_loss": last.get("test_loss"),
        "train_loss": trained["test_loss"],
        "train_accuracy": trained.get("test_accuracy"),
        "images_per_second": progress.images / progress.seconds if progress.seconds else None,
        "seconds": progress.seconds,
        "cpu_seconds": progress.cpu_seconds,
        "peak_memory": _peak_memory(device),
        "forwards": progress.forwards,
        "backwards": progress.backwards,
    }


def _peak_memory(device: torch.device) -> int | None:
    """Return the highest memory in use, in bytes: the accelerator's, or this process's; None where it is not told."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
