"""SliceSAM: the plain gradient of the whole batch, and SAM's correction to it from a slice of the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..buffers import has_batch_statistics
from ..checks import checked_choice, checked_count, checked_share
from ..combine import added
from ..parallel import Gradients
from ..progress import Progress
from ..ranking import Candidates, Ranking, checked_ranking, checked_scores, keep_highest, random
from ..step import SharpnessAware
from ..underway import Targets


@final
class SliceSAM(SharpnessAware):
    """Step by g_B + g_S(theta + eps) - g_S(theta), eps = r g_S / ||g_S||: B the batch, S a random slice of it.

    SAM's gradient is the plain one plus a small correction, and only the correction needs a second pass. S is drawn
    anew in each step, so the step is, on average, SAM's with m = |S| (m-sharpness); the descent sees every sample.

    Args:
        base, model, perturbation, seed: As for SAM.
        rho: The radius r, or where it ends.
        radius: "growing": r is rho times the root of the share of the loss that is gone, for a perturbation only holds
            up a net that has yet to learn; "constant": r is rho.
        share: Share of the batch in S, in (0, 1]; 1 is SAM. A step costs 1 + share times the base's.
        k: Correct every k-th step, k times as strongly.
        ranking: How S is chosen: "random"; or as ESAM's, by "aligned" or a function: S then runs at theta once more.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.15,
        radius: Literal["growing", "constant"] = "growing",
        share: float = 0.125,
        k: int = 1,
        ranking: str | Ranking = "random",
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        self.share, self.k = checked_share("share", share), checked_count("k", k, "steps")
        self.radius = checked_choice("radius", radius, ("growing", "constant"))
        self.ranking = checked_ranking(ranking)
        if ranking == "exact":
            raise ValueError('S is chosen at theta, before there is an eps; choose ranking="random" or "aligned"')
        ranked = self.ranking is not random and self.share < 1
        self.parted = "ranked" if ranked else "drawn"
        self.reads_head, self.reads_losses = ranked and getattr(self.ranking, "reads_head", False), ranked
        self.draws_samples, self.whole_gradient = not ranked, True
        self.second_weight = float(k)
        super().__init__(base, model, rho=rho, perturbation=perturbation, seed=seed)
        self._steps, self._progress = 0, Progress()

    @staticmethod
    def idle(settings: Mapping[str, Any]) -> set[str]:
        """Where S is the whole batch, there is nothing to choose."""
        return {"ranking"} if settings["share"] == 1 else set()

    def perturbs_now(self) -> bool:
        """Correct every k-th step, once there is a radius."""
        return self._steps % self.k == 0 and self._growth() > 0

    def mask(self, targets: Targets) -> Targets:
        """Return all tensors, with the radius of this step."""
        return replace(targets, rho=[self._growth() * rho for rho in targets.rho])

    def part(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw the share of the samples; two at least where a layer normalises by them."""
        return self._highest(torch.rand(size, generator=generator, device="cpu"))

    def ranked_part(self, batch: Candidates) -> Tensor:
        """Take the share of the samples with the highest scores."""
        return self._highest(checked_scores(self.ranking(batch), batch))

    def remainder(self, batch: Gradients, part: Gradients) -> Gradients:
        """Return g_B - k g_S, to which k times the gradient of S at theta + eps is added."""
        return added(batch, part, -self.second_weight)

    def after_step(self, loss: Tensor) -> None:
        """Count, and see how far training has come, alike on every rank."""
        self._steps += 1
        if self.radius == "growing":
            self._progress = self._progress.after(self.parallel.mean_number(self.sign * float(loss)))

    def memory(self) -> dict[str, Any]:
        """Return the number of steps, and how far training has come."""
        return {"steps": self._steps, "progress": self._progress.memory()}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        self._steps, self._progress = memory.get("steps", 0), Progress(**memory.get("progress", {}))

    def _growth(self) -> float:
        return math.sqrt(self._progress.share) if self.radius == "growing" else 1.0

    def _highest(self, scores: Tensor) -> Tensor:
        return keep_highest(scores, self.share, least=2 if has_batch_statistics(self.model) else 1)
