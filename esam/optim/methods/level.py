"""SDS whose steps are no longer than the batch's own: is it the longer gradient of B+ that holds SDS back?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, final

from torch import nn
from torch.optim import Optimizer

from ..parallel import Gradients
from ..ranking import Ranking
from .esam import ESAM


@final
class LevelSDS(ESAM):
    """Step like ESAM-SDS, by a gradient that has the length of the whole batch's at theta.

    The samples that SDS keeps have the steepest losses, so that their mean gradient is two to three times as long; here
    the learning rate is divided, step by step, by that ratio. For study.

    Args:
        base, model, rho, gamma, ranking, m, perturbation, seed: As for ESAM.
    """

    whole_gradient = True

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        gamma: float = 0.5,
        ranking: str | Ranking = "exact",
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        options: dict[str, Any] = {"ranking": ranking, "m": m, "perturbation": perturbation, "seed": seed}
        super().__init__(base, model, rho=rho, beta=1.0, gamma=gamma, **options)

    @staticmethod
    def idle(settings: Mapping[str, Any]) -> set[str]:
        """Without a selection no ranking matters."""
        return {"ranking"} if settings["gamma"] == 1 else set()

    def combine(self, first: Gradients | None, scale: float) -> None:
        """Scale ``.grad`` to the length of the first gradient, where both have one."""
        found = [p.grad for p in self._parameters() if p.grad is not None]
        if first is None or not found:
            return
        now = self.parallel.local([g.coalesce().values() if g.is_sparse else g for g in found])
        lengths = self.parallel.norm(list(first.values())), self.parallel.norm(now) / scale
        if all(0 < length < math.inf for length in lengths):
            for gradient in found:
                gradient.mul_(lengths[0] / lengths[1])
