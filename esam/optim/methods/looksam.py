"""LookSAM (Liu et al., CVPR 2022): perturb every k-th step, reuse what it taught in between."""

from __future__ import annotations

import math
from typing import Any, Literal, final

from torch import nn
from torch.optim import Optimizer

from ..checks import checked_count, checked_number
from ..combine import add_to_length, added, orthogonal_part
from ..parallel import Gradients
from ..step import SharpnessAware


@final
class LookSAM(SharpnessAware):
    """Take SAM's gradient every k-th step; in between add the part of it that was orthogonal to the plain gradient.

    Args:
        base, model, rho, m, perturbation, seed: As for SAM.
        k: Perturb every k-th step; 1 is SAM. The paper's 5.
        alpha: Weight of the reused part; the paper's 0.7.
    """

    memory_by_parameter = {"reused": "tensor"}

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        k: int = 5,
        alpha: float = 0.7,
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        self.k, self.alpha = checked_count("k", k, "steps"), checked_number("alpha", alpha)
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, seed=seed)
        self.whole_gradient = k > 1
        self._steps = 0
        self._reused: Gradients | None = None

    def perturbs_now(self) -> bool:
        """Perturb every k-th step, and until there is something to reuse."""
        return self._steps % self.k == 0 or self._reused is None

    def combine(self, first: Gradients | None, scale: float) -> None:
        """After a perturbed step keep the orthogonal part of its gradient; otherwise add the part kept.

        Sparse gradients stay as they are: their base wants them sparse, and the part to reuse is dense.
        """
        if self.k == 1:
            return
        gradients = {n: p.grad for n, p in enumerate(self._parameters()) if p.grad is not None}
        found = {n: g for n, g in gradients.items() if not g.is_sparse}
        now = dict(zip(found, self.parallel.local(list(found.values())), strict=True))
        if not math.isfinite(self.parallel.norm(list(now.values()))):
            return  # the base, or its scaler, deals with it; the step does not count
        self._steps += 1
        if first is not None:
            dense = {n: g for n, g in first.items() if n in found or n not in gradients}
            part = orthogonal_part(now, dense, self.parallel)
            self._reused = self._reused if part is None else added({}, part, 1 / scale)
        elif self._reused is not None:
            add_to_length(now, self._reused, self.alpha, self.parallel)

    def memory(self) -> dict[str, Any]:
        """Return the number of steps and the part of the gradient to reuse."""
        return {"steps": self._steps, "known": int(self._reused is not None), "reused": dict(self._reused or {})}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        self._steps, self._reused = memory.get("steps", 0), memory["reused"] if memory.get("known") else None
