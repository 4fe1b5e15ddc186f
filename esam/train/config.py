"""What does one run consist of?"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from esam.optim import Method


@dataclass(frozen=True)
class Config:
    """One training run: the same configuration is the same run, and its results can be shared."""

    data: str = "digits"
    """`digits` (embedded), a hub name such as uoft-cs/cifar10, a folder of images, or package.module:function."""
    model: str = "cnn"
    """A name from `esam models`, timm/NAME where timm is installed, or package.module:function."""
    method: str = "sam"
    """A name from `esam methods`, or package.module:Class; base is the base optimizer alone."""
    seed: int = 0
    """Decides initial weights, order, augmentation and masks; the same for every method."""
    epochs: int = 30
    """Passes over the training data. Commands that are not given it train more on small data: 1,000 steps at least."""
    batch_size: int = 128
    """Samples a step. Commands that are not given it take smaller batches of small data, down to 16."""
    evaluate_every: int = 1
    """Evaluate after every so many epochs, and after the last."""

    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of the method, as in ``{"rho": 0.1}``; what is left out is as the method has it by default."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The base optimizer."""
    lr: float = 0.1
    """Learning rate of the base optimizer; adamw wants one of about 0.001."""
    momentum: float = 0.9
    """Of sgd."""
    weight_decay: float = 5e-4
    """Of the base optimizer."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How the learning rate goes on from there: falling to 0, or as it is."""
    warmup: float = 0.0
    """Epochs over which the learning rate rises from 0; the schedule follows."""
    budget: float | None = None
    """Stop after this many seconds of training instead of after the epochs."""

    augment: str = "none"
    """none, shift, basic (pad, crop, flip) or inception."""
    train_size: int | None = None
    """Train on a class-balanced part of this many images."""
    label_noise: float = 0.0
    """Share of the training labels that are made wrong."""
    validation: bool = False
    """Evaluate on a fixed fifth of the training data, which is not trained on, instead of the test set: for tuning."""
    label_column: str | None = None
    """Of hub data: the column with the labels, where it cannot be guessed."""
    image_column: str | None = None
    """Of hub data: the column with the pictures, where it cannot be guessed."""
    size: int | None = None
    """Resize images to this many pixels a side; needed where they differ in size."""

    precision: Literal["float32", "bf16", "fp16"] = "float32"
    """What the passes are computed in; weights stay float32."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: an accelerator where there is one."""
    threads: int | None = None
    """CPU threads; None: torch's own choice."""
    workers: int | None = None
    """Processes that read a Dataset of your own ahead of need; None: none."""
    compile: bool = False
    """Compile the model (torch.compile): faster on GPUs once it has compiled."""

    notes: tuple[str, ...] = ()
    """Remarks that the report shows."""
    tuned: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Where a search chose some of the values: what it tried, and what it chose; it does not tell runs apart."""

    def as_json(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values."""
        return {**dataclasses.asdict(self), "notes": list(self.notes)}

    def identity(self) -> dict[str, Any]:
        """Return what the run is known by: two configurations with the same identity are the same run.

        Settings of the training that are at their defaults are left out, so that a new one changes no old run; those of
        the method are all in it, by the values that take effect. Remarks, a search and what it runs on do not count.
        """
        mine, fresh = self.as_json(), Config().as_json()
        changed = {name: value for name, value in mine.items() if name not in _NOT_COMPARED and value != fresh[name]}
        return {**changed, "method": self.method, "settings": find_method(self.method).effective(self.settings)}

    def id(self) -> str:
        """Return the twelve hexadecimal digits that stand for the identity."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:12]

    def differences(self, other: Config) -> dict[str, tuple[Any, Any]]:
        """Return what makes the other another run, each by its name with the value here and there."""
        mine, theirs = (
            {name: value for name, value in each.as_json().items() if name == "method" or name not in _NOT_COMPARED}
            for each in (self, other)
        )
        if self.method == other.method:  # else settings are not compared, and a record's method is not imported
            row = find_method(self.method)
            mine, theirs = mine | row.effective(self.settings), theirs | row.effective(other.settings)
        pairs = {name: (mine.get(name), theirs.get(name)) for name in mine | theirs}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def check(self) -> Config:
        """Return the configuration if every number in it is in its range; a method checks its own."""
        if faults := self.faults():
            several = [f"{len(faults)} settings are wrong:"] if len(faults) > 1 else []
            raise ValueError("\n  ".join([*several, *faults]))
        return self

    def faults(self) -> list[str]:
        """Return a sentence for each number that is out of its range."""
        faults = []
        for name, (low, end, words) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not (low <= value < end):
                faults.append(f"{name} must be {words}, got {value}")
        if self.warmup and self.warmup >= self.epochs:
            faults.append(f"warmup must be less than the {self.epochs} epochs of training, got {self.warmup:g}")
        if self.optimizer == "adamw" and self.momentum != Config.momentum:
            faults.append(f"momentum must be left out with adamw, which has betas of its own, got {self.momentum}")
        return faults

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        """Take back what ``as_json`` gave; a setting that this version does not know is refused."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known) or " Another version of esam may have written it"
                raise ValueError(f"unknown setting {name!r} in a run's configuration.{hint}")
        return cls(**{**values, "notes": tuple(values.get("notes", ()))})


def suited(config: Config, samples: int, *, epochs: bool = True, batch_size: bool = True) -> Config:
    """Return the configuration with the batch size and the epochs that suit so many training samples, where asked for.

    Small data need smaller batches and more epochs: 30 epochs of 300 samples in batches of 128 are 90 steps, which fit
    nothing.

    >>> small, usual = suited(Config(), 300), suited(Config(), 50_000)
    >>> (small.batch_size, small.epochs), (usual.batch_size, usual.epochs)
    ((16, 53), (128, 30))
    """
    if batch_size:
        fits = 2 ** int(math.log2(max(1, samples // LEAST_BATCHES)))
        config = dataclasses.replace(config, batch_size=max(LEAST_BATCH, min(Config.batch_size, fits)))
    if epochs:
        wanted = math.ceil(LEAST_STEPS / math.ceil(samples / config.batch_size))
        config = dataclasses.replace(config, epochs=max(Config.epochs, min(MOST_EPOCHS, wanted)))
    return config


LEAST_STEPS, MOST_EPOCHS = 1_000, 200
LEAST_BATCH, LEAST_BATCHES = 16, 16
"""What ``suited`` aims at: so many steps, by at most so many epochs; batches of so many, and so many an epoch."""
MOST_THREADS = 1024
"""More than any machine has cores for one process; torch ends the process when it cannot start them."""
_RANGES: dict[str, tuple[float, float, str]] = {
    "epochs": (0, math.inf, "0 or more"),
    "batch_size": (1, math.inf, "1 or more"),
    "evaluate_every": (1, math.inf, "1 epoch or more"),
    "lr": (0, math.inf, "a finite number of 0 or more"),
    "momentum": (0, 1, "in [0, 1)"),
    "weight_decay": (0, math.inf, "a finite number of 0 or more"),
    "warmup": (0, math.inf, "a finite number of epochs, 0 or more"),
    "budget": (1e-9, math.inf, "a finite number of seconds above 0"),
    "train_size": (1, math.inf, "1 or more"),
    "label_noise": (0, math.nextafter(1, 2), "a share in [0, 1]; for 20 % write 0.2"),
    "size": (1, math.inf, "1 or more pixels"),
    "threads": (1, MOST_THREADS + 1, f"in 1..{MOST_THREADS}, or left out for torch's choice"),
    "workers": (0, math.inf, "0 or more"),
    "seed": (0, 2**63, "0 or more, and less than 2^63"),
}
"""The least value of a setting, what it must be below, and that in words."""
_NOT_COMPARED = ("method", "settings", "notes", "tuned", "threads", "device", "workers", "compile")
"""What an identity holds in another form, or not at all."""


def find_method(name: str) -> Method:
    """Return the registry's row of that name; ``package.module:Class`` is a method of the user's own."""
    from esam.optim import METHODS, method_of

    if is_factory(name):
        from .task import find_factory

        find_factory(name)  # in the working folder too; it says what is wrong
    else:
        check_known("method", name, METHODS)
    return method_of(name)


def is_factory(name: str) -> bool:
    """Whether a name is that of something importable: ``package.module:function``."""
    return re.fullmatch(r"[\w.-]+:[\w.]*", name) is not None


def describe_method(config: Config) -> str:
    """Return the method's settings in words: "rho 0.05, gamma 0.5"."""
    known = {n: v for n, v in find_method(config.method).effective(config.settings).items() if v is not None}
    plain = {name: f"{value:g}" if isinstance(value, float) else value for name, value in known.items()}
    return ", ".join(f"{name} {value}" for name, value in plain.items()) or "no settings"


def describe_run(config: Config) -> str:
    """Return the run in words: base optimizer, length, batches, schedule, data and model."""
    base = {"lr": config.lr, "weight decay": config.weight_decay}
    if config.optimizer == "sgd":
        base["momentum"] = config.momentum
    length = f"{config.epochs} epochs" if config.budget is None else f"{config.budget:g} seconds"
    optimizer = ", ".join([config.optimizer, *(f"{name} {value:g}" for name, value in base.items()), config.schedule])
    return f"{length} of {config.model} on {config.data}, batches of {config.batch_size}; {optimizer}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Give a question with the nearest known name, such as `` Did you mean 'digits'?``, or nothing when none is near.

    Names are compared whole and by their last part, so that ``cifar10`` finds ``uoft-cs/cifar10``, and in lower case.
    """
    known = list(known)
    if name in known:  # whatever is wrong, it is not the name
        return ""
    full_names = {form.lower(): full for full in known for form in (last_part(full), full)}
    for form in (name, last_part(name)):
        if near := difflib.get_close_matches(form.lower(), full_names, n=1):
            return f" Did you mean {full_names[near[0]]!r}?"
    return ""


def check_known(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones, with the nearest of them and all."""
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}.{did_you_mean(name, known)} There are: {', '.join(known)}")


def last_part(name: str) -> str:
    """Give what stands behind the last slash."""
    return name.rstrip("/").rsplit("/", 1)[-1]
