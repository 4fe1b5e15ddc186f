"""ESAM with a gamma that follows training: everything trains at first, and SDS begins as the loss falls."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from ..progress import Progress
from .esam import ESAM


@final
class FollowingESAM(ESAM):
    """Step like ESAM, keeping a share of each batch that falls with the loss, from all of it towards gamma.

    As long as the net has not learnt, the samples whose loss rises most are the steepest ones, and training on them
    alone stalls.

    Args:
        base, model, rho, beta, gamma, ranking, mask, norm, m, perturbation, seed: As for ESAM; gamma is where it ends.
    """

    _progress = Progress()

    def kept_share(self) -> float:
        """Return the share for this step."""
        return 1 - (1 - self.gamma) * self._progress.share

    def after_step(self, loss: Tensor) -> None:
        """See how far training has come, alike on every rank."""
        self._progress = self._progress.after(self.parallel.mean_number(self.sign * float(loss)))

    def memory(self) -> dict[str, Any]:
        """Return ESAM's, and how far training has come."""
        return {**super().memory(), "progress": self._progress.memory()}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        super().load_memory(memory)
        self._progress = Progress(**memory.get("progress", {}))
