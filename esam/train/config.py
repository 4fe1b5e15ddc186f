"""What does one run consist of?"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .names import did_you_mean

METHOD_SETTINGS = ("rho", "beta", "gamma", "ranking", "choose", "m")
"""The settings that belong to the method, not to the training around it."""


@dataclass(frozen=True)
class Config:
    """One training run: the same configuration is the same run, and its results can be shared."""

    data: str = "digits"
    """`digits` (embedded), a Hugging Face hub name such as uoft-cs/cifar10, or a folder of images."""
    model: str = "cnn"
    """A name from `esam models`, or timm/NAME where timm is installed."""
    method: str = "esam"
    """`sgd` (the base optimizer alone), sam, asam, looksam, esam, esam-swp or esam-sds."""
    seed: int = 0
    """Decides initial weights, order, augmentation and masks; the same for every method."""
    epochs: int = 30
    batch_size: int = 128
    evaluate_every: int = 1
    """Evaluate after every so many epochs, and after the last."""

    rho: float | None = None
    """Radius of the neighbourhood; None: the method's own default."""
    beta: float | None = None
    """SWP: probability that a tensor is perturbed."""
    gamma: float | None = None
    """SDS: share of the batch that takes the second pass."""
    ranking: str | None = None
    """SDS: how the samples are ranked: exact, aligned, gradient, loss or random."""
    choose: str | None = None
    """SWP: how the tensors are drawn: independent or suffix."""
    m: int | None = None
    """m-sharpness: samples that share one perturbation."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The base optimizer."""
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["cosine", "constant"] = "cosine"
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

    notes: tuple[str, ...] = ()
    """Remarks that the report shows."""

    def as_json(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values."""
        return {**dataclasses.asdict(self), "notes": list(self.notes)}

    def given(self) -> dict[str, Any]:
        """Return what differs from the defaults: what a run is known by, so that a new setting changes no old run."""
        fresh = Config().as_json()
        return {name: value for name, value in self.as_json().items() if value != fresh[name]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        """Take back what ``as_json`` gave; a setting that this version does not know is refused."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"unknown setting {name!r} in a run's configuration.{did_you_mean(name, known)}")
        return cls(**{**values, "notes": tuple(values.get("notes", ()))})

    def method_settings(self) -> dict[str, Any]:
        """Return the settings of the method that were given."""
        given = {name: getattr(self, name) for name in METHOD_SETTINGS}
        return {name: value for name, value in given.items() if value is not None}
