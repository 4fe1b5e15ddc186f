"""The base optimizer evaluated at a running average of its weights: what is free without sharpness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..ascent import Eps
from ..checks import checked_share
from ..parallel import Gradients
from ..perturb import perturbed
from ..step import SharpnessAware


@final
class BaseAverage(SharpnessAware):
    """Step as the base does, and evaluate a running average of the weights (EMA): what is free without sharpness.

    ``decay``, in (0, 1], is the share of the average that a step leaves; early on it is smaller, (1 + t) / (10 + t).
    The running statistics of the model are those of its own weights.
    """

    memory_by_parameter = {"average": "tensor"}

    def __init__(self, base: Optimizer, model: nn.Module, *, decay: float = 0.99, seed: int | None = None) -> None:
        self.decay = checked_share("decay", decay)
        super().__init__(base, model, rho=0.0, seed=seed)
        self._steps = 0
        self._average: Gradients = {}

    def perturbs_now(self) -> bool:
        """Never."""
        return False

    def after_step(self, loss: Tensor) -> None:
        """Move the average."""
        decay = min(self.decay, (1 + self._steps) / (10 + self._steps)) if self._average else 0.0
        self._steps += 1
        now = dict(enumerate(self.parallel.local([p.detach() for p in self._parameters()])))
        self._average = {n: torch.lerp(w, self._average.get(n, w), decay) for n, w in now.items()}

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """Hold the model at the average inside this block."""
        weights = self.parallel.local([p.detach() for p in self._parameters()])
        moved = [(w, self._average[n]) for n, w in enumerate(weights) if n in self._average]
        difference = [average - w for w, average in moved]
        with perturbed([w for w, _ in moved], Eps(difference, [1.0] * len(moved)), on_move=self.parallel.moved):
            yield

    def memory(self) -> dict[str, Any]:
        """Return the number of steps and the average."""
        return {"steps": self._steps, "average": dict(self._average)}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        self._steps = memory.get("steps", 0)
        self._average = dict(memory["average"]) if self._steps else {}
