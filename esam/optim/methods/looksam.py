"""LookSAM (Liu et al., CVPR 2022): perturb every k-th step, reuse what it taught in between."""

from __future__ import annotations

from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batch import Batch
from ..checks import checked_count, checked_number
from ..flow import Plan
from ..gradients import Gradients
from ..perturb import l2_ascent
from ..step import SharpnessAware


@final
class LookSAM(SharpnessAware):
    """Take SAM's gradient every k-th step; in between add the part of it that was orthogonal to the plain gradient.

    Args:
        base, model, rho, perturbation, loss, seed: As for SAM.
        k: Perturb every k-th step; 1 is SAM. The paper's 5.
        alpha: Weight of the reused part; the paper's 0.7.
    """

    remembered = ("g_v",)

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        k: int = 5,
        alpha: float = 0.7,
        perturbation: Literal["rank", "global"] = "rank",
        **common: Any,
    ) -> None:
        self.k, self.alpha = checked_count("k", k, "steps"), checked_number("alpha", alpha)
        self.g_v = Gradients()
        """The part of the last perturbed gradient that was orthogonal to the plain one; nothing before there is one."""
        super().__init__(base, model, rho=rho, perturbation=perturbation, **common)

    def plan(self) -> Plan:
        """Perturb every k-th step, and until there is something to reuse."""
        return Plan(plain=self.steps % self.k > 0 and len(self.g_v) > 0)

    def finish(self, batch: Batch) -> None:
        """Return g_s and keep g_v; or g + alpha ||g|| / ||g_v|| g_v.

        Sparse gradients stay as they are: their base wants them sparse, and the part to reuse is dense.
        """
        if self.steps % self.k > 0 and self.g_v:
            g = batch.gradient.without(batch.sparse)
            g_v = self.g_v.only(g.index)
            batch.add(g_v * (self.alpha * ratio(g.norm(), g_v.norm())))
            return
        g = batch.mean_over_ranks(batch.first).without(batch.sparse) if self.k > 1 else Gradients()
        with self.at(l2_ascent(batch.first, batch.radii)):
            batch.backward()
        if self.k > 1:
            self.g_v = orthogonal_part(batch.gradient.without(batch.sparse), g)


def orthogonal_part(g_s: Gradients, g: Gradients) -> Gradients:
    """Return the part of g_s orthogonal to g; zero where all of it is rounding, or where either has no direction."""
    norm, norm_s = g.norm(), g_s.norm()
    part = g_s - g * ratio(g_s.dot(g), norm.square()).to(norm)
    # both gradients carry the rounding of sums over samples and weights, some tens of units in the last place
    noise = 64 * max((torch.finfo(t.dtype).eps for t in g_s.tensors), default=0.0)
    part = part * ((part.norm() > noise * norm_s) & norm_s.isfinite() & (norm > 0)).to(norm)
    return part.like(part.index, [t.nan_to_num(0.0, 0.0, 0.0) for t in part.tensors])


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return a / b, or 0 where that is not a number."""
    return torch.nan_to_num(a / b, 0.0, 0.0, 0.0)
