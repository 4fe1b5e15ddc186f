"""The base optimizer, driven by the same loss function: what every method is compared with."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from ..batch import Batch
from ..checks import checked_share
from ..flow import Plan
from ..gradients import Gradients
from ..perturb import perturbed
from ..step import SharpnessAware


@final
class Base(SharpnessAware):
    """Step by the gradient at theta: the base optimizer, bit for bit, whatever radius its groups carry."""

    def __init__(self, base: Optimizer, model: nn.Module, **common: Any) -> None:
        super().__init__(base, model, rho=None, **common)

    def plan(self) -> None:
        """Nothing is perturbed."""
        return None


@final
class BasePart(SharpnessAware):
    """Step by the gradient at theta of a random part of the batch: what seeing fewer samples does by itself.

    The control for every method whose descent sees only a part of each batch: ``gamma``, in (0, 1], is that part.
    """

    def __init__(self, base: Optimizer, model: nn.Module, *, gamma: float = 0.5, **common: Any) -> None:
        self.gamma = checked_share("gamma", gamma)
        super().__init__(base, model, rho=None, **common)

    def plan(self) -> Plan:
        """Run a part of the batch, and nothing else."""
        return Plan(subset=self.gamma, rest=False)

    def finish(self, batch: Batch) -> None:
        """Return the gradient of that part."""
        batch.add(batch.subset.first)


@final
class BaseAverage(SharpnessAware):
    """Step as the base does, and evaluate a running average of the weights (EMA): what is free without sharpness.

    ``decay``, in (0, 1], is the share of the average that a step leaves; early on it is smaller, (1 + t) / (10 + t).
    The running statistics of the model are those of its own weights.
    """

    remembered = ("average", "averaged")

    def __init__(self, base: Optimizer, model: nn.Module, *, decay: float = 0.99, **common: Any) -> None:
        self.decay = checked_share("decay", decay)
        self.average, self.averaged = Gradients(), 0
        """The average, and how many steps are in it."""
        super().__init__(base, model, rho=None, **common)

    def plan(self) -> None:
        """Take the weights after the last step into the average; nothing is perturbed."""
        self._take_in()

    def evaluation_weights(self) -> AbstractContextManager[Any]:
        """Hold the model at the average inside this block."""
        self._take_in()
        weights = self.weights()
        moved = [(weights[n], average) for n, average in self.average] if self.averaged else []
        difference = [average - w.detach() for w, average in moved]
        return perturbed([w for w, _ in moved], difference, on_move=self.ranks.invalidate_caches)

    def _take_in(self) -> None:
        if self.averaged == self.steps:
            return
        decay = min(self.decay, self.steps / (9 + self.steps)) if self.averaged else 0.0
        now = [w.detach() for w in self.weights()]
        known = dict(iter(self.average)) if self.averaged else {}
        self.average = Gradients(range(len(now)), [torch.lerp(w, known.get(n, w), decay) for n, w in enumerate(now)])
        self.averaged = self.steps
