"""Who is timed? A contender makes, for a model and a batch, a function that takes one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esam.optim import METHODS
from esam.train.config import did_you_mean

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


def pytorch_optimizer_sam(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """Take the step of the SAM in the package pytorch_optimizer (the extra bench)."""
    try:
        from pytorch_optimizer import SAM as TheirSAM
    except ImportError as error:
        raise ValueError("pytorch_optimizer is not installed; run: pip install torch-esam[bench]") from error
    optimizer = TheirSAM(
        model.parameters(), base_optimizer=torch.optim.SGD, rho=0.05, lr=1e-3, momentum=0.9, weight_decay=5e-4
    )

    def step() -> None:
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.second_step(zero_grad=True)

    return step


OTHERS = {"base": Contender(plain_loop, 3.0), "pytorch_optimizer": Contender(pytorch_optimizer_sam, 6.0)}
"""Steps without any of this package: the base optimizer in an ordinary loop, and another package's SAM."""


def contender(name: str) -> Contender:
    """Return the contender of that name: a row of the registry, or another package's step.

    Settings of the method may follow: ``esam:mask=suffix,gamma=0.7``.
    """
    if name in OTHERS:
        return OTHERS[name]
    method, _, words = name.partition(":")
    if method not in METHODS:
        known = [*METHODS, "pytorch_optimizer"]
        raise ValueError(f"unknown contender {method!r}.{did_you_mean(method, known)} There are: {', '.join(known)}")
    settings = dict(_setting(method, word) for word in words.split(",") if word)
    return Contender(Registered(method, settings), METHODS[method].units(settings))


def _setting(method: str, word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    kinds = METHODS[method].options()
    if not equals or key not in kinds:
        hint = did_you_mean(key, kinds)
        raise ValueError(f"{method} takes settings as in {method}:{next(iter(kinds), 'rho')}=..., got {word!r}.{hint}")
    try:
        return key, kinds[key](value)
    except ValueError as error:
        raise ValueError(f"{key} must be of type {kinds[key].__name__}, got {value!r}") from error
