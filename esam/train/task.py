"""How do a user's own data and model come into a run? By importable functions, named ``package.module:function``."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from .data.draws import balanced_subset, check_share, flip_labels, generator_for, held_out
from .data.share import Part, Share
from .evaluation import Loss, per_sample_cross_entropy
from .inputs import Batch, as_pair, on_device, rows_of
from .names import did_you_mean
from .samples import Samples, SomeRows, check_samples, class_labels, row_of, sample_count, taken_rows

FACTORY = re.compile(r"[\w.-]+:[\w.]*")


@dataclass(frozen=True)
class Task:
    """A user's own data: what to train on, what to test on, and the loss of each sample."""

    train: Samples
    test: Samples
    loss: Loss = per_sample_cross_entropy
    classes: tuple[str, ...] | None = None
    """The classes' names; None: numbers, or targets that are no classes."""

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            check_samples(name, getattr(self, name))


def is_factory(name: str) -> bool:
    """Tell whether a name is that of an importable function."""
    return FACTORY.fullmatch(name) is not None


def find_factory(name: str) -> Callable[..., Any]:
    """Return the function called ``package.module:function``; modules of the working folder are found too."""
    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"{name}: importing {module_name} needs {error.name}, which is not installed") from error
        raise ValueError(
            f"{name}: there is no module {module_name!r}; start in the folder that holds it, put that folder on "
            "PYTHONPATH, or install the package"
        ) from error
    except Exception as error:  # whatever a user's own module raises, such as a SyntaxError
        raise _own_failure(f"importing {module_name}", error) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [found for found, value in vars(module).items() if callable(value) and not found.startswith("_")]
        hint = did_you_mean(function_name, known)
        raise ValueError(f"{name}: {module_name} has no function {function_name!r}.{hint} Write module:function")
    return function  # type: ignore[no-any-return]


def called(name: str, function: Callable[..., Any], *given: Any) -> Any:
    """Call a user's own function; whatever it raises is told with the line that raised it."""
    try:
        return function(*given)
    except Exception as error:  # of any kind
        raise _own_failure(name, error) from error


def _own_failure(what: str, error: Exception) -> ValueError:
    if isinstance(error, SyntaxError):
        return ValueError(f"{what} failed at line {error.lineno} of {error.filename}: {error.msg}; mend it there")
    places = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError) and places and Path(places[-1].filename).parent == Path(__file__).parent:
        return ValueError(f"{what}: {error}")  # a Task's own words
    where = f" at line {places[-1].lineno} of {places[-1].filename}" if places else ""
    return ValueError(f"{what} failed{where}: {type(error).__name__}: {error}; mend it there")


def load_task(
    name: str,
    *,
    train_size: int | None = None,
    label_noise: float = 0.0,
    validation: bool = False,
    seed: int = 0,
) -> Task:
    """Return the task that a factory makes, or a part of it, as ``load_data`` does with images."""
    check_share(label_noise)
    task = called(name, find_factory(name))
    if not isinstance(task, Task):
        raise ValueError(f"{name} must return an esam.train.Task(train, test), got {type(task).__name__}")
    if validation:
        task = held_out_task(task)
    if train_size is None and label_noise == 0:
        return task
    samples = task.train
    labels = class_labels(name, samples)
    if train_size is not None:
        rows = balanced_subset(labels, train_size, seed=seed)
        samples, labels = taken_rows(samples, rows), labels[rows]
    if label_noise > 0:
        labels, _ = flip_labels(labels, label_noise, classes=class_count(task), seed=seed)
        samples = (
            (samples[0], labels) if isinstance(samples, tuple) else SomeRows(samples, torch.arange(len(labels)), labels)
        )
    return replace(task, train=samples)


def held_out_task(task: Task) -> Task:
    """Return the task with a fifth of its training data, always the same one, in the place of the test data.

    Every class in proportion, where the targets are classes.
    """
    try:
        labels = class_labels("the task", task.train)
    except ValueError:  # no classes
        labels = torch.zeros(sample_count(task.train), dtype=torch.long)
    kept, out = held_out(labels)
    return replace(task, train=taken_rows(task.train, kept), test=taken_rows(task.train, out))


def make_model(name: str, data: object) -> nn.Module:
    """Return the module that a factory makes; a factory with one parameter is given the data."""
    factory = find_factory(name)
    try:
        takes = any(
            p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            for p in inspect.signature(factory).parameters.values()
        )
    except ValueError:  # a builtin without a signature
        takes = False
    model = called(name, factory, *([data] if takes else []))
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def own_builder(model: str | None, data: str | None = None) -> Callable[[], nn.Module] | None:
    """Return a function that builds the model of these names; None where no model is named."""
    return (
        None if model is None else lambda: make_model(model, None if data is None else called(data, find_factory(data)))
    )


def class_count(task: Task) -> int:
    """Return how many classes there are."""
    if task.classes is not None:
        return len(task.classes)
    return 1 + max(int(class_labels("the task", samples).max()) for samples in (task.train, task.test))


def image_shape(task: Task) -> tuple[int, int, int]:
    """Return channels, height and width of the inputs, which must be images."""
    first, _ = row_of(task.train, 0)
    if not isinstance(first, Tensor) or first.dim() != 3 or first.shape[1] != first.shape[2]:
        raise ValueError(
            "the models that esam can name take square images (channels, size, size) of float32; give a model of your "
            "own as package.module:function"
        )
    return first.shape[0], first.shape[1], first.shape[2]


class TaskBatches:
    """Gives the batches of any epoch of a task; the order of epoch n depends on (seed, n) alone, as with images."""

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
        workers: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
        self.batch_size, self._seed, self._memory_format = batch_size, seed, memory_format
        self._workers = workers
        moved = isinstance(samples, tuple)
        self._samples = (on_device(samples[0], device), samples[1].to(device)) if moved else samples
        self._device = torch.device(device)

    def __len__(self) -> int:
        """Give the number of batches in an epoch."""
        return math.ceil(sample_count(self._samples) / self.batch_size)

    def order(self, number: int) -> Tensor:
        """Give the order of the samples in epoch ``number``: batch b takes ``order[b * batch_size:][:batch_size]``."""
        return torch.randperm(sample_count(self._samples), generator=generator_for("order", self._seed, number))

    def epoch(self, number: int) -> Iterator[Batch]:
        """Give the shuffled batches of epoch ``number``."""
        return (part[:2] for part in self._parts(self.order(number), Share()))

    def in_order(self) -> Iterator[Batch]:
        """Give every sample once, in stored order."""
        return (part[:2] for part in self.parts_in_order(Share()))

    def parts(self, number: int, share: Share) -> Iterator[Part]:
        """Give a rank's parts of the batches of epoch ``number``; no other sample is read."""
        return self._parts(self.order(number), share)

    def parts_in_order(self, share: Share) -> Iterator[Part]:
        """Give a rank's parts of the batches in stored order."""
        return self._parts(torch.arange(sample_count(self._samples)), share)

    def _parts(self, order: Tensor, share: Share) -> Iterator[Part]:
        batches = torch.split(order, self.batch_size)
        owns = [share.rows(len(batch)) for batch in batches]
        read = self._read([batch[own.slice] for batch, own in zip(batches, owns, strict=True)])
        for own, (inputs, targets) in zip(owns, read, strict=True):
            if isinstance(inputs, Tensor) and inputs.dim() == 4:
                inputs = inputs.contiguous(memory_format=self._memory_format)
            yield Part(inputs, targets, own.counted, own.whole)

    def _read(self, batches: Sequence[Tensor]) -> Iterator[Batch]:
        """Give the samples of each batch of rows; a Dataset's are read by worker processes, if there are any."""
        if isinstance(self._samples, tuple):
            inputs, targets = self._samples
            return ((rows_of(inputs, rows), targets[rows]) for rows in (batch.to(self._device) for batch in batches))
        samples = self._samples
        if self._workers == 0:
            return (as_pair(default_collate([samples[int(row)] for row in rows])) for rows in batches)
        sampler, generator = [rows.tolist() for rows in batches], generator_for("workers", self._seed)
        return map(as_pair, DataLoader(samples, batch_sampler=sampler, num_workers=self._workers, generator=generator))
