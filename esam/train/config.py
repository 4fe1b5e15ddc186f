"""What does one run consist of?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .history import ALIASES, modern_config
from .names import did_you_mean

if TYPE_CHECKING:
    from esam.optim import Method


@dataclass(frozen=True)
class Config:
    """One training run: the same configuration is the same run, and its results can be shared."""

    data: str = "digits"
    """`digits` (embedded), a hub name such as uoft-cs/cifar10, a folder of images, or package.module:function."""
    model: str = "cnn"
    """A name from `esam models`, timm/NAME where timm is installed, or package.module:function."""
    method: str = "esam"
    """A name from `esam methods`; base is the base optimizer alone."""
    seed: int = 0
    """Decides initial weights, order, augmentation and masks; the same for every method."""
    epochs: int = 30
    batch_size: int = 128
    evaluate_every: int = 1
    """Evaluate after every so many epochs, and after the last."""

    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of the method, as in ``{"rho": 0.1}``; what is left out is as the method has it by default."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The base optimizer."""
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.0
    """Epochs over which the learning rate rises from 0; the schedule follows."""
    budget: float | None = None
    """Stop after this many seconds of training instead of after the epochs."""

    augment: str = "none"
    """none, shift, basic (pad, crop, flip), cutout or inception."""
    train_size: int | None = None
    """Train on a class-balanced part of this many images."""
    label_noise: float = 0.0
    """Share of the training labels that are made wrong."""
    validation: bool = False
    """Evaluate on training images that train_size leaves out, not on the test set: for tuning."""
    label_column: str | None = None
    image_column: str | None = None
    size: int | None = None
    """Resize images to this many pixels a side; needed where they differ in size."""

    precision: Literal["float32", "bf16", "fp16"] = "float32"
    device: str = "auto"
    threads: int | None = None
    """CPU threads; None: torch's own choice."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """On several ranks (torchrun): whole weights on each, or a part of every weight (fully_shard)."""
    workers: int | None = None
    """Processes that decode ahead of need; None: 2 for pictures that are too many for memory, else none."""
    compile: bool = False
    """Compile the model (torch.compile): faster on GPUs once it has compiled."""
    checkpointing: bool = False
    """Keep only what enters each block of the model, and run the block again in backward: less memory, more time."""

    notes: tuple[str, ...] = ()
    """Remarks that the report shows."""
    tuned: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Where a search chose some of the values: what it tried, and what it chose; it does not tell runs apart."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", ALIASES.get(self.method, self.method))

    def as_json(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values."""
        apart = {"settings": dict(self.settings), "notes": list(self.notes), "tuned": dict(self.tuned)}
        return {**dataclasses.asdict(self), **apart}

    def identity(self) -> dict[str, Any]:
        """Return what the run is known by: two configurations with the same identity are the same run.

        Settings of the training that are at their defaults are left out, so that a new one changes no old run; those of
        the method are all in it, by the values that take effect. Remarks, a search and what it runs on do not count.
        """
        row = find_method(self.method)
        fresh = Config().as_json()
        own = {name: value for name, value in self.as_json().items() if value != fresh[name] and name not in _APART}
        return {**own, "method": row.build.__name__, "settings": row.effective(self.settings)}

    def id(self) -> str:
        """Return the twelve hexadecimal digits that stand for the identity."""
        from .record import config_id

        return config_id(self.identity())

    def differences(self, other: Config) -> dict[str, tuple[Any, Any]]:
        """Return what makes the other another run, each by its name with the value here and there."""
        mine, theirs = ({**config.as_json(), **config.identity()} for config in (self, other))
        names = [name for name in mine if name == "method" or name not in _APART]
        found = {name: (mine[name], theirs[name]) for name in names if mine[name] != theirs[name]}
        if "method" in found:
            found["method"] = (self.method, other.method)
        ours, others = mine["settings"], theirs["settings"]
        for name in dict.fromkeys([*ours, *others]):
            if ours.get(name) != others.get(name):
                found[name] = (ours.get(name), others.get(name))
        return found

    def check(self) -> Config:
        """Return the configuration if every number in it is in its range; a method checks its own."""
        if told := self.faults():
            raise ValueError(told[0] if len(told) == 1 else "\n  ".join([f"{len(told)} settings are wrong:", *told]))
        return self

    def faults(self) -> list[str]:
        """Return a sentence for each number that is out of its range."""
        told = []
        for name, (low, words) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not (low <= value < math.inf):
                told.append(f"{name} must be {words}, got {value}")
        if self.warmup and self.warmup >= self.epochs:
            told.append(f"warmup must be less than the {self.epochs} epochs of training, got {self.warmup:g}")
        if self.budget == 0:
            told.append("budget must be more than 0 seconds, got 0")
        if self.optimizer == "adamw" and self.momentum != Config.momentum:
            told.append(f"momentum must be left out with adamw, which has betas of its own, got {self.momentum}")
        if 1 <= self.momentum < math.inf:
            told.append(f"momentum must be in [0, 1), got {self.momentum}")
        if self.compile and self.checkpointing:
            told.append(
                "compile and checkpointing do not go together: a compiled graph cannot tell when a block "
                "runs for the second time; leave one of them out"
            )
        if self.threads is not None and self.threads > MOST_THREADS:
            told.append(f"threads must be at most {MOST_THREADS}, got {self.threads}; leave it out for torch's choice")
        if not 0 <= self.label_noise <= 1:
            told.append(f"label_noise is a share and must be in [0, 1], got {self.label_noise}; for 20 % write 0.2")
        return told

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        """Take back what ``as_json`` gave; a setting that this version does not know is refused."""
        values = modern_config(values)
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known) or " Another version of esam may have written it"
                raise ValueError(f"unknown setting {name!r} in a run's configuration.{hint}")
        return cls(**{**values, "notes": tuple(values.get("notes", ()))})


MOST_THREADS = 1024
"""More than any machine has cores for one process; torch ends the process when it cannot start them."""
_RANGES: dict[str, tuple[float, str]] = {
    "epochs": (0, "0 or more"),
    "batch_size": (1, "1 or more"),
    "evaluate_every": (1, "1 epoch or more"),
    "lr": (0, "a finite number of 0 or more"),
    "momentum": (0, "in [0, 1)"),
    "weight_decay": (0, "a finite number of 0 or more"),
    "warmup": (0, "a finite number of epochs, 0 or more"),
    "budget": (0, "a finite number of seconds above 0"),
    "train_size": (1, "1 or more"),
    "size": (1, "1 or more pixels"),
    "threads": (1, "1 or more"),
    "workers": (0, "0 or more"),
    "seed": (0, "0 or more"),
}
"""The least value of a setting, and what it must be in words; nothing may be infinite, or no number."""
_APART = (
    "method",
    "settings",
    "notes",
    "tuned",
    "threads",
    "device",
    "strategy",
    "workers",
    "compile",
    "checkpointing",
)
"""What an identity holds in another form, or not at all."""


def find_method(name: str) -> Method:
    """Return the registry's row of that name."""
    from esam.optim import METHODS

    name = ALIASES.get(name, name)
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}.{did_you_mean(name, METHODS)} There are: {', '.join(METHODS)}")
    return METHODS[name]
