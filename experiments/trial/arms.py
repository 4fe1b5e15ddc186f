"""What is compared? The arms of the trial: how each builds its optimizer, and where its radius is searched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from esam.optim import method_of

NOISE = "experiments.methods.noise:RandomPerturbation"
ASCENT_PART = "experiments.methods.ascent_part:AscentPart"
SLICE = 8  # S is an eighth of the batch, wherever an arm has a part of it


@dataclass(frozen=True)
class Arm:
    """One arm."""

    title: str
    build: Callable[..., Any] | None
    """(base, net, rho=, batch=, seed=) -> the optimizer; None: the base by itself, with no wrapper around it."""
    rho: float | None = None
    """The radius that its search starts from; None: it has none."""
    averaged: bool = False
    """Whether it is judged at a running average of the weights."""


def registered(name: str, **settings: Any) -> Callable[..., Any]:
    """Return a builder of a method: a key of the registry, or package.module:Class."""

    def build(base: Optimizer, net: nn.Module, *, rho: float, batch: int, seed: int) -> Any:
        return method_of(name)(base, net, rho=rho, seed=seed, **settings)

    return build


def grouped(base: Optimizer, net: nn.Module, *, rho: float, batch: int, seed: int) -> Any:
    """Build SAM in groups as large as SliceSAM's slice, which SliceSAM estimates."""
    return method_of("sam")(base, net, rho=rho, m=batch // SLICE, seed=seed)


ARMS: dict[str, Arm] = {
    "base": Arm("Base", None),
    "base-ema": Arm("Base, averaged", None, averaged=True),
    "rwp": Arm("Random perturbation", registered(NOISE), 0.1),
    "msam": Arm("Momentum-SAM", registered("msam"), 0.5),
    "sam": Arm("SAM", registered("sam"), 0.05),
    "sam-groups": Arm("SAM, in groups of |S|", grouped, 0.05),
    "esam": Arm("ESAM", registered("esam"), 0.05),
    "esam-swp": Arm("ESAM-SWP", registered("esam-swp"), 0.05),
    "ascent": Arm("SAM, ascent on a part", registered(ASCENT_PART, share=1 / SLICE), 0.05),
    "slicesam": Arm("SliceSAM", registered("slicesam", share=1 / SLICE), 0.05),
}
