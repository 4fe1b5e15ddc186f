"""What is a task, how does one's own code make one, and what does a record say of its data?"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .batches import Transform
from .config import Config, did_you_mean
from .evaluation import MOST_CLASSES, Loss, per_sample_cross_entropy
from .samples import (
    Samples,
    are_labels,
    balanced_subset,
    class_labels,
    flip_labels,
    held_out,
    known_targets,
    leaves_of,
    row_of,
    sample_count,
    taken_rows,
)


@dataclass(frozen=True)
class Task:
    """Data to train on and to test on, with the loss of each sample."""

    train: Samples
    test: Samples
    loss: Loss = per_sample_cross_entropy
    classes: tuple[str, ...] | None = None
    """The classes' names; None: numbers, or targets that are not classes."""
    transform: Transform | None = None
    """Applied to whole batches on the device, after augmentation: stored inputs -> inputs as the model takes them."""

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            samples = getattr(self, name)
            _check_samples(name, samples)
            labels, named = known_targets(samples), len(self.classes or ())
            if named and are_labels(labels) and int(labels.max()) >= named:
                raise ValueError(
                    f"the {name} labels go up to {int(labels.max())}, and classes names {named}; give a name for each "
                    "class, from 0"
                )

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of an input as it is stored; None where it is no tensor."""
        try:
            first, _ = row_of(self.train, 0)
        except ValueError:  # no pairs yet: a collate_fn makes them
            return None
        return tuple(first.shape) if isinstance(first, Tensor) else None

    def class_count(self) -> int:
        """Return how many classes there are."""
        if self.classes is not None:
            return len(self.classes)
        return 1 + max(int(class_labels(samples).max()) for samples in (self.train, self.test))


def _check_samples(name: str, samples: Any) -> None:
    """Refuse what is no samples, or none."""
    if isinstance(samples, tuple):
        inputs = list(samples[0].values()) if isinstance(samples[0], Mapping) else [samples[0]]
        if len(samples) != 2 or not all(isinstance(part, Tensor) and part.dim() for part in (*inputs, samples[1])):
            raise ValueError(
                f"a Task's {name} must be a pair of tensors (inputs, targets), or of a dict of tensors and a tensor, "
                f"got {samples!r:.80}"
            )
        if (counts := {len(part) for part in inputs}) != {len(samples[1])}:
            numbers = " or ".join(map(str, sorted(counts)))
            raise ValueError(f"{name} has {numbers} inputs and {len(samples[1])} targets; give one for each")
    elif not (hasattr(samples, "__getitem__") and hasattr(samples, "__len__")):
        raise ValueError(
            f"a Task's {name} must be a pair of tensors (inputs, targets) or a Dataset with a length, got "
            f"{type(samples).__name__}"
        )
    if sample_count(samples) == 0:
        raise ValueError(f"a Task's {name} must hold a sample at least, got none")


def as_task(name: str, value: Any) -> Task:
    """Return a task, or the one that a pair (train, test) makes."""
    if isinstance(value, Task):
        return value
    if isinstance(value, (tuple, list)) and len(value) == 2 and not any(isinstance(part, Tensor) for part in value):
        return Task(value[0], value[1])
    raise ValueError(
        f"{name} must be an esam.train.Task(train, test) or a pair (train, test), got {type(value).__name__}"
    )


def part_of(task: Task, config: Config) -> Task:
    """Return the task with held-out training samples as its test samples, fewer training samples, or wrong labels."""
    if config.validation:
        task = held_out_task(task)
    if config.label_noise and not isinstance(task.train, tuple):
        raise ValueError("label_noise changes targets that are a tensor; in a Dataset of your own, change them there")
    classes = task.class_count() if config.label_noise else 0
    if config.train_size is not None:
        rows = balanced_subset(class_labels(task.train), config.train_size)
        task = replace(task, train=taken_rows(task.train, rows))
    if config.label_noise:
        labels = flip_labels(class_labels(task.train), config.label_noise, classes=classes)
        task = replace(task, train=(task.train[0], labels))
    return task


def held_out_task(task: Task) -> Task:
    """Return the task with a fifth of its training data, always the same one, in the place of the test data.

    Every class in proportion, where the targets are classes.
    """
    try:
        labels = class_labels(task.train)
    except ValueError:  # no classes
        labels = torch.zeros(sample_count(task.train), dtype=torch.long)
    kept, out = held_out(labels)
    return replace(task, train=taken_rows(task.train, kept), test=taken_rows(task.train, out))


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
        raise _user_code_error(f"importing {module_name}", error) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        hint = did_you_mean(function_name, known)
        raise ValueError(f"{name}: {module_name} has no function {function_name!r}.{hint} Write module:function")
    return function  # type: ignore[no-any-return]


def user_code_line(error: BaseException) -> str:
    """Say where code that is neither esam's nor an installed package's raised an error: " at line 3 of net.py"; or "".

    The last such line of the traceback, so that an error inside torch is placed where the user called it.
    """
    ours, standard = Path(__file__).resolve().parents[1], Path(os.__file__).resolve().parent
    installed = {"site-packages", "dist-packages"}
    for place in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(place.filename).resolve()
        foreign = installed & set(path.parts) or any(path.is_relative_to(folder) for folder in (ours, standard))
        if path.is_file() and not foreign:
            return f" at line {place.lineno} of {place.filename}"
    return ""


def called(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's own function; whatever it raises is reported with the line that raised it."""
    try:
        return function(*arguments)
    except Exception as error:  # of any kind
        raise _user_code_error(name, error) from error


def _user_code_error(what: str, error: Exception) -> ValueError:
    if isinstance(error, SyntaxError):
        return ValueError(f"{what} failed at line {error.lineno} of {error.filename}: {error.msg}; mend it there")
    places = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError) and places and Path(__file__).parents[1] in Path(places[-1].filename).parents:
        return ValueError(f"{what}: {error}")  # our own words
    return ValueError(f"{what} failed{user_code_line(error)}: {type(error).__name__}: {error}; mend it there")


def make_model(name: str, data: Task | None = None) -> nn.Module:
    """Return the module that a factory makes; a factory with one parameter is given the data."""
    factory = find_factory(name)
    takes = any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in inspect.signature(factory).parameters.values()
    )
    if takes and data is None:
        raise ValueError(f"{name} takes the data; in Python: esam.load_run(..., build_model=lambda: function(data))")
    model = called(name, factory, *([data] if takes else []))
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} must return a torch.nn.Module, got {type(model).__name__}")
    return model


LOOKED_AT = 256
"""Rows of a user's own Dataset that stand for all of it, evenly spread; tensors count whole."""

Facts = dict[str, Any]


def data_facts(task: Task) -> Facts:
    """Return counts, classes, input shape, normalisation, and a fingerprint that changes whenever the data do."""
    parts = {"train": task.train, "test": task.test}
    with torch.random.fork_rng(devices=[]):  # to look at the data must not change what is drawn afterwards
        shape, digest = task.shape, hashlib.sha256()
        for part in parts.values():
            _add_samples(digest, part)
    facts: Facts = {
        "fingerprint": digest.hexdigest()[:16],
        **{name: sample_count(part) for name, part in parts.items()},
    }
    facts["shape"] = None if shape is None else list(shape)
    facts["classes"] = None if task.classes is None else list(task.classes)
    facts |= {key: list(getattr(task.transform, key)) for key in ("mean", "std") if hasattr(task.transform, key)}
    return {**facts, "of_each_class": {name: _counts(known_targets(part)) for name, part in parts.items()}}


def _counts(labels: Tensor | None) -> list[int] | None:
    """Return how many samples each class has; None where the targets are no classes, or no tensor tells them."""
    if not are_labels(labels) or int(labels.min()) < 0 or int(labels.max()) >= MOST_CLASSES:
        return None
    counts: list[int] = labels.long().bincount().tolist()
    return counts


def changed_data(then: Facts | None, now: Facts) -> str | None:
    """Say how the data or the model's tensors differ from a record's; None where they do not, or one is silent."""
    if then is None or then["fingerprint"] == now["fingerprint"]:
        models = {facts.get("model") for facts in (then or now, now)} - {None}
        return "the model has other tensors than it had" if len(models) > 1 else None
    both = [f"{data['train']} training and {data['test']} test samples ({data['fingerprint']})" for data in (then, now)]
    return f"the data have changed: then {both[0]}, now {both[1]}"


def _add_samples(digest: Any, samples: Any) -> None:
    """Add all tensors, or a Dataset's length and some of its rows without what comes out otherwise each time."""
    if isinstance(samples, tuple):
        for x in leaves_of(samples):  # images as they decode, row by row with their channels
            _add_tensor(digest, x.permute(0, 2, 3, 1) if x.dtype == torch.uint8 and x.dim() == 4 else x)
        return
    digest.update(str(len(samples)).encode())
    for row in torch.linspace(0, len(samples) - 1, min(LOOKED_AT, len(samples))).round().long().tolist():
        for part, same in zip(leaves_of(samples[row]), leaves_of(samples[row]), strict=False):
            if isinstance(part, Tensor) and isinstance(same, Tensor) and torch.equal(part, same):
                _add_tensor(digest, part)
            elif isinstance(part, (int, float, str)) and part == same:
                digest.update(repr(part).encode())


def _add_tensor(digest: Any, tensor: Tensor) -> None:
    digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.numel():
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
