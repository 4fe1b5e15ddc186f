"""Which methods are there, by name?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .asam import ASAM
from .esam import ESAM
from .looksam import LookSAM
from .sam import SAM
from .step import SharpnessAware


@dataclass(frozen=True)
class Method:
    """A row of the registry: a class, the settings that make it this method, and what to call it."""

    title: str
    build: type[SharpnessAware]
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, base: Optimizer, model: nn.Module, **settings: Any) -> SharpnessAware:
        """Build the optimizer; ``settings`` go before the row's own."""
        return self.build(base, model, **{**self.settings, **settings})


METHODS: dict[str, Method] = {
    "sam": Method("SAM", SAM),
    "asam": Method("ASAM", ASAM),
    "looksam": Method("LookSAM", LookSAM),
    "esam": Method("ESAM", ESAM),
    "esam-swp": Method("ESAM-SWP", ESAM, {"gamma": 1.0}),
    "esam-sds": Method("ESAM-SDS", ESAM, {"beta": 1.0, "ranking": "exact"}),
}
