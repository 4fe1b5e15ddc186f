"""Who is timed? A contender makes, for a model and a batch, a function that takes one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esam.optim import ESAM, METHODS
from esam.optim.mask import Mask, run_to_the_output, share_of_full_draws, suffix
from esam.optim.methods.saf import SAF
from esam.train.history import ALIASES
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


def plain_loop(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
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

    def __call__(self, count: int, beta: float, generator: torch.Generator) -> Mask:
        """Return the next draw; the generator is not used."""
        self.step += 1
        draw, certain = self.step * GOLDEN_RATIO % 1, share_of_full_draws(beta)
        return run_to_the_output(count, beta, draw, (draw - certain) / (1 - certain))


@dataclass(frozen=True)
class Registered:
    """Steps by a method of the registry."""

    name: str
    settings: dict[str, Any]

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
        """Return the function that takes one step."""
        optimizer = METHODS[self.name](base_optimizer(model), model, **self.settings)
        if isinstance(optimizer, ESAM) and optimizer.draw_mask is suffix:
            optimizer.draw_mask = EvenSuffix()
        samples = torch.arange(len(y))

        def closure(keep: slice | Tensor) -> Tensor:
            outputs = model(x[keep])
            losses = F.cross_entropy(outputs, y[keep], reduction="none")
            return losses + optimizer.trajectory_loss(outputs, samples[keep]) if isinstance(optimizer, SAF) else losses

        return lambda: optimizer.step(closure, batch_size=len(y))


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


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "esam-aligned": ("esam", {"ranking": "aligned", "mask": "suffix"}),
    "esam-exact-suffix": ("esam", {"mask": "suffix"}),
    "esam-swp-suffix": ("esam-swp", {"mask": "suffix"}),
}
"""Forms of a registered method that are worth a time of their own."""
STEADY: dict[str, dict[str, Any]] = {
    "slicesam": {"radius": "constant"},
    "sam-late": {"when": "every"},
    "sam-early": {"when": "every"},
}
"""Settings with which a few steps cost what those of a whole training do on average."""
OTHERS = {"base": Contender(plain_loop, 3.0), "pytorch_optimizer": Contender(pytorch_optimizer_sam, 6.0)}
"""Steps without any of this package: the base optimizer's own loop, and another package's SAM."""


def contender(name: str) -> Contender:
    """Return the contender of that name: a method of the registry, a form of one, or another package's."""
    name = ALIASES.get(name, name)
    if name in OTHERS:
        return OTHERS[name]
    if name in FORMS:
        method, settings = FORMS[name]
        return Contender(Registered(method, settings), METHODS[method].units(settings))
    known = [*METHODS, *FORMS, "pytorch_optimizer"]
    if name not in METHODS:
        raise ValueError(f"unknown contender {name!r}.{did_you_mean(name, known)} There are: {', '.join(known)}")
    return Contender(Registered(name, STEADY.get(name, {})), METHODS[name].units())
