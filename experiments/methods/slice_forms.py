"""Other forms of SliceSAM's step: which eps, how often, and into which of AdamW's averages."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from esam.optim import Batch, Gradients, Plan, SharpnessAware
from esam.optim.perturb import l2_ascent


class SliceForm(SharpnessAware):
    """Step by g_B + g_S(theta + eps) - g_S(theta); a form chooses eps, or what becomes of the correction.

    Args:
        base, model, rho, seed: As for SAM.
        share: Share of the batch in S.
    """

    def __init__(
        self, base: Optimizer, model: nn.Module, *, rho: float = 0.05, share: float = 0.125, **common: Any
    ) -> None:
        self.share = share
        super().__init__(base, model, rho=rho, **common)

    def plan(self) -> Plan:
        """Let S run separately."""
        return Plan(subset=self.share)

    def direction(self, g_B: Gradients, g_S: Gradients) -> Gradients:
        """Return where eps points: up the loss of S."""
        return g_S

    def finish(self, batch: Batch) -> None:
        """Return g_B - g_S, and add g_S at theta + eps."""
        g_B, g_S = batch.first, batch.subset.first
        batch.add(g_B - g_S)
        with self.at(l2_ascent(self.direction(g_B, g_S), batch.radii)):
            batch.subset.backward()


class FriendlySlice(SliceForm):
    """Eps along g_S - g_B, the slice's own noise (F-SAM's idea on a slice)."""

    def direction(self, g_B: Gradients, g_S: Gradients) -> Gradients:
        """Return g_S - g_B."""
        return g_S - g_B


class RepeatedSlice(SliceForm):
    """The correction is taken every k-th step, from a slice k times as large, and added in the steps between, too."""

    remembered = ("correction",)
    k = 3

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.correction = Gradients()
        super().__init__(*arguments, **settings)

    def plan(self) -> Plan:
        """Let S run separately in every k-th step."""
        return Plan(plain=True) if self.steps % self.k else Plan(subset=self.k * self.share)

    def finish(self, batch: Batch) -> None:
        """Add the correction: a new one, or the last."""
        if self.steps % self.k:
            batch.add(self.correction)
            return
        g_B = batch.first
        super().finish(batch)
        self.correction = batch.gradient - g_B


class UnscaledSlice(SliceForm):
    """The correction stays out of AdamW's second moment, which then scales it and does not follow it."""

    def __init__(self, base: Optimizer, model: nn.Module, **settings: Any) -> None:
        super().__init__(base, model, **settings)
        self.plain = Gradients()
        base.register_step_post_hook(self._correct_second_moment)

    def finish(self, batch: Batch) -> None:
        """Keep g_B for the second moment."""
        self.plain = batch.first
        super().finish(batch)

    def _correct_second_moment(self, base: Optimizer, *_: Any) -> None:
        """Put g_B squared in the place of the stepped gradient's square."""
        groups = [group for group in base.param_groups for _ in group["params"]]
        for (index, g), parameter in zip(self.plain, self.parameters(), strict=True):
            share = 1 - groups[index]["betas"][1]
            assert parameter.grad is not None
            base.state[parameter]["exp_avg_sq"].add_((g.square() - parameter.grad.square()) * share)
