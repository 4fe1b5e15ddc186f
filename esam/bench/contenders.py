"""Who is timed? A contender makes, for a model and a batch, a function that takes one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esam.optim import ESAM, METHODS
from esam.optim.choice import Draw, run_to_the_output, share_of_full_draws, suffix
from esam.train.names import did_you_mean

Build = Callable[[nn.Module, Tensor, Tensor], Callable[[], Any]]
"""(model, inputs, labels) -> a function that takes one step."""


GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Its multiples, modulo 1, fill the interval evenly however many are taken."""


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


class EvenSuffix:
    """Draws suffixes spread evenly over their distribution: few steps then cost what many would on average."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, count: int, beta: float, generator: torch.Generator) -> Draw:
        """Return the next draw; the generator is not used."""
        self.step += 1
        lot, certain = self.step * GOLDEN_RATIO % 1, share_of_full_draws(beta)
        return run_to_the_output(count, beta, lot, (lot - certain) / (1 - certain))


@dataclass(frozen=True)
class Registered:
    """Steps by a method of the registry."""

    name: str
    settings: dict[str, Any]

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
        """Return the function that takes one step."""
        optimizer = METHODS[self.name](base_optimizer(model), model, **self.settings)
        if isinstance(optimizer, ESAM) and optimizer.choice is suffix:
            optimizer.choice = EvenSuffix()
        return lambda: optimizer.step(
            lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none"), batch_size=len(y)
        )


def method(name: str, **settings: Any) -> Build:
    """Return the contender that steps by a method of the registry."""
    return Registered(name, settings)


def pytorch_optimizer_sam(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """Take the step of the SAM in the package pytorch_optimizer (an extra of its own)."""
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


_PAPER = {"ranking": "exact", "choose": "independent"}
# beta = 0.6 and gamma = 0.5, the defaults: SWP leaves 2 beta of the first backward where it draws a suffix, 1 + beta
# where it draws tensors one by one; SDS leaves gamma of the second pass, and the exact ranking takes a forward pass,
# which one_forward lets serve the kept samples too
CONTENDERS: dict[str, Contender] = {
    "sgd": Contender(sgd, 3.0),
    "sam": Contender(method("sam"), 6.0),
    "asam": Contender(method("asam"), 6.0),
    "looksam": Contender(method("looksam"), 3.6),
    "esam": Contender(method("esam"), 3.7),
    "esam-exact": Contender(method("esam", ranking="exact"), 4.7),
    "esam-one-forward": Contender(method("esam", ranking="exact", one_forward=True), 4.2),
    "esam-paper": Contender(method("esam", **_PAPER), 5.1),
    "esam-independent": Contender(method("esam", choose="independent"), 4.1),
    "esam-gradient": Contender(method("esam", ranking="gradient", choose="independent"), 4.1),
    "esam-swp": Contender(method("esam-swp"), 5.2),
    "esam-swp-independent": Contender(method("esam-swp", choose="independent"), 5.6),
    "esam-sds": Contender(method("esam-sds"), 5.5),
    "pytorch_optimizer": Contender(pytorch_optimizer_sam, 6.0),
}


def contender(name: str) -> Contender:
    """Return the contender of that name."""
    if name not in CONTENDERS:
        raise ValueError(
            f"unknown contender {name!r}.{did_you_mean(name, CONTENDERS)} There are: {', '.join(CONTENDERS)}"
        )
    return CONTENDERS[name]
