"""Who is timed? A contender makes, for a model and a batch, a function that takes one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esam.optim import METHODS
from esam.train.names import did_you_mean

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


def sgd(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """Take the step of an ordinary training loop, without any of this package."""
    optimizer = base_optimizer(model)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def method(name: str, **settings: Any) -> Build:
    """Return the contender that steps by a method of the registry."""

    def build(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
        optimizer = METHODS[name](base_optimizer(model), model, **settings)
        return lambda: optimizer.step(lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none"))

    return build


def pytorch_optimizer_sam(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """Take the step of the SAM in the package pytorch_optimizer (an extra of its own)."""
    try:
        from pytorch_optimizer import SAM as TheirSAM
    except ImportError as error:
        raise ValueError("pytorch_optimizer is not installed; run: pip install pytorch_optimizer") from error
    optimizer = TheirSAM(
        model.parameters(), base_optimizer=torch.optim.SGD, rho=0.05, lr=1e-3, momentum=0.9, weight_decay=5e-4
    )

    def step() -> None:
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.second_step(zero_grad=True)

    return step


# beta = 0.6 and gamma = 0.5, the defaults: SWP leaves 1 + beta of the first backward (2 beta by suffix), SDS gamma of
# the second pass, and the exact ranking takes a forward pass, which one_forward lets serve the kept samples too
CONTENDERS: dict[str, Contender] = {
    "sgd": Contender(sgd, 3.0),
    "sam": Contender(method("sam"), 6.0),
    "asam": Contender(method("asam"), 6.0),
    "looksam": Contender(method("looksam"), 3.6),
    "esam": Contender(method("esam"), 5.1),
    "esam-one-forward": Contender(method("esam", one_forward=True), 4.6),
    "esam-swp": Contender(method("esam-swp"), 5.6),
    "esam-sds": Contender(method("esam-sds"), 5.5),
    "esam-loss": Contender(method("esam", ranking="loss"), 4.1),
    "esam-gradient": Contender(method("esam", ranking="gradient"), 4.1),
    "esam-suffix": Contender(method("esam", ranking="gradient", choose="suffix"), 3.7),
    "swp-suffix": Contender(method("esam-swp", choose="suffix"), 5.2),
    "pytorch_optimizer": Contender(pytorch_optimizer_sam, 6.0),
}


def contender(name: str) -> Contender:
    """Return the contender of that name."""
    if name not in CONTENDERS:
        raise ValueError(
            f"unknown contender {name!r}.{did_you_mean(name, CONTENDERS)} There are: {', '.join(CONTENDERS)}"
        )
    return CONTENDERS[name]
