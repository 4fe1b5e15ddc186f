"""Who is timed? A contender makes, for a model and a batch, a function that takes one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esam.optim import METHODS
from esam.train.config import did_you_mean, find_method

Build = Callable[[nn.Module, Tensor, Tensor], Callable[[], Any]]
"""(model, inputs, labels) -> a function that takes one step."""


@dataclass(frozen=True)
class Contender:
    """Who is timed, and what its step should cost: a forward pass 1, a backward 1 for inputs and 1 for weights."""

    build: Build
    units: float


def base_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the base that every contender gets."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)


def plain_loop(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """Take the step of an ordinary training loop, without any of this package."""
    optimizer = base_optimizer(model)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


@dataclass(frozen=True)
class Registered:
    """Steps by a method of the registry."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
        """Return the function that takes one step."""
        optimizer = METHODS[self.name](base_optimizer(model), model, **self.settings)

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y, reduction="none")

        return lambda: optimizer.step(loss_of, x, y)


def contender(name: str, settings: dict[str, Any] | None = None) -> Contender:
    """Return a method of the registry, with settings of its own; ``base`` is the base optimizer in an ordinary loop."""
    settings, options = settings or {}, find_method(name).options()
    for key in settings:
        if key not in options:
            raise ValueError(f"{name} has no setting {key!r}.{did_you_mean(key, options)} See esam methods {name}")
    return Contender(plain_loop if name == "base" else Registered(name, settings), METHODS[name].units(settings))
