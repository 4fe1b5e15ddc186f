"""SliceSAM: the plain gradient of the whole batch, and SAM's correction to it from a slice of the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, final

from torch import nn
from torch.optim import Optimizer

from ..batch import Batch
from ..checks import GuidanceWarning, checked_share, warn_caller
from ..flow import Plan
from ..perturb import l2_ascent
from ..step import SharpnessAware


@final
class SliceSAM(SharpnessAware):
    """Step by g_B + g_S(theta + eps) - g_S(theta), eps = rho g_S / ||g_S||: B the batch, S a random slice of it.

    SAM's gradient is the plain one plus a small correction, and only the correction needs a second pass. S is drawn
    anew in each step, so the step is, on average, SAM's with m = |S| (m-sharpness); the descent sees every sample.

    Args:
        base, model, perturbation, loss, seed: As for SAM.
        rho: Radius of the neighbourhood, in SAM's units.
        share: Share of the batch in S, in (0, 1]; 1 is SAM. A step costs 1 + share times the base's.
        overhead: In place of ``share``, what a step may cost more than the base's, counted to the nearest sample:
            0.06 is 6 %. Batches too small for it are warned of. What it costs in seconds, ``esam bench`` measures.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        share: float = 0.125,
        overhead: float | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        **common: Any,
    ) -> None:
        self.overhead = None if overhead is None else checked_share("overhead", overhead)
        self.share = checked_share("share", share) if self.overhead is None else self.overhead
        self._price_checked = False
        super().__init__(base, model, rho=rho, perturbation=perturbation, **common)

    @staticmethod
    def ineffective(settings: Mapping[str, Any]) -> set[str]:
        """Return the one of share and overhead that does not count."""
        return {"overhead" if settings.get("overhead") is None else "share"}

    def plan(self) -> Plan:
        """Let S run separately."""
        return Plan(subset=self.share)

    def finish(self, batch: Batch) -> None:
        """Return g_B - g_S, and add g_S at theta + eps."""
        self._check_price(batch.subset.samples, batch.samples)
        g_B, g_S = batch.first, batch.subset.first
        batch.add(g_B.sub_(g_S))
        with self.at(l2_ascent(g_S, batch.radii)):
            del g_B, g_S  # the second pass needs the memory
            batch.subset.backward()

    def _check_price(self, again: int, size: int) -> None:
        """Warn, once, where the slice cannot be as small as the overhead asks."""
        if self.overhead is None or self._price_checked:
            return
        self._price_checked = True
        if again > self.overhead * size + 0.5:
            warn_caller(
                f"overhead={self.overhead:g} is {self.overhead * size:.2g} of {size} samples, and {again} take the "
                f"second pass, the fewest that can: a step costs {again / size:.0%} more than the base's; pass batches "
                f"of {math.ceil(again / self.overhead)} or more, or choose a method of one pass, esam.MSAM",
                GuidanceWarning,
            )
