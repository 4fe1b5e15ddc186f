"""SAF (Du et al., NeurIPS 2022): keep the outputs near those of some epochs ago, a sharpness measure at no cost."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import checked_count, checked_number
from ..step import SharpnessAware


@final
class SAF(SharpnessAware):
    """Step as the base does; the closure adds ``trajectory_loss(outputs, samples)`` to its losses.

    Args:
        base, model, seed: As for SAM.
        strength: Weight of the trajectory loss; the paper's 0.3.
        temperature: Of the outputs compared; the paper's 5.
        lag: How many epochs lie between the outputs compared; the paper's 3.
        start: Epochs before the loss begins; the paper's 5.
    """

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        strength: float = 0.3,
        temperature: float = 5.0,
        lag: int = 3,
        start: int = 5,
        seed: int | None = None,
    ) -> None:
        self.strength = checked_number("strength", strength)
        self.temperature = checked_number("temperature", temperature)
        self.lag = checked_count("lag", lag, "epochs")
        self.start = checked_count("start", start, "epochs", least=0)
        super().__init__(base, model, rho=0.0, seed=seed)
        self._epoch = 0
        self._now: list[tuple[Tensor, Tensor]] = []
        self._outputs: list[Tensor] = []
        """Of every sample, epoch by epoch, the newest first; NaN where a sample was not seen."""

    def perturbs_now(self) -> bool:
        """Never."""
        return False

    def trajectory_loss(self, outputs: Tensor, samples: Tensor) -> Tensor:
        """Return, for each sample, the divergence from its outputs some epochs ago; remember those of now.

        Args:
            outputs: Scores before the softmax, one row a sample.
            samples: The samples' places in the training set. When one comes again, a new epoch has begun.
        """
        here, places = outputs.detach(), samples.to(outputs.device)
        self._make_room(here, int(places.max()) + 1)
        if not bool(torch.isnan(self._outputs[0][places]).all()):
            self._epoch += 1
            self._outputs = [torch.full_like(self._outputs[0], torch.nan), *self._outputs[: self.lag]]
        self._outputs[0][places] = here.to(self._outputs[0])
        self._now.append((places, here.to(self._outputs[0])))
        if self._epoch < max(self.start, self.lag):
            return outputs.sum(1) * 0.0
        before = self._outputs[self.lag][places].to(outputs)
        now, then = (F.log_softmax(o / self.temperature, dim=1) for o in (outputs, before.nan_to_num()))
        divergence = F.kl_div(now, then, reduction="none", log_target=True).sum(1)
        return self.strength * torch.where(before.isnan().any(1), 0.0, divergence)

    def after_step(self, loss: Tensor) -> None:
        """Learn what the other ranks' samples came to: in a later epoch they may be this one's."""
        if self._now and (self.parallel.replicated or self.parallel.sharded):
            places, outputs = (self.parallel.gathered(torch.cat(parts)) for parts in zip(*self._now, strict=True))
            self._make_room(outputs, int(places.max()) + 1)
            self._outputs[0][places] = outputs
        self._now = []

    def _make_room(self, like: Tensor, rows: int) -> None:
        if not self._outputs:
            self._outputs = [torch.empty(0, like.shape[1], dtype=torch.float32, device=like.device)]
        missing = rows - len(self._outputs[0])
        if missing > 0:
            self._outputs = [F.pad(o, (0, 0, 0, missing), value=torch.nan) for o in self._outputs]

    def memory(self) -> dict[str, Any]:
        """Return the epoch and the outputs."""
        return {"epoch": self._epoch, "outputs": list(self._outputs)}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        self._epoch, self._outputs = memory.get("epoch", 0), list(memory.get("outputs", []))
        self._now = []
