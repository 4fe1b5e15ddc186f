"""SAM in the last layer alone, sample by sample, in closed form: no extra pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..step import SharpnessAware


@final
class HeadSAM(SharpnessAware):
    """Send back from the last linear layer the gradient at each sample's own worst weights nearby.

    With features h and output gradient r, the worst W nearby is W + rho r h^T / (||r|| ||h||), where the features'
    gradient W^T r becomes W^T r + rho ||r|| h / ||h||, r being kept as it is.

    Args:
        base, model, seed: As for SAM; the model must end in an ``nn.Linear``.
        rho: Radius in the last layer's weights.
    """

    def __init__(self, base: Optimizer, model: nn.Module, *, rho: float = 0.05, seed: int | None = None) -> None:
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        if not layers:
            raise ValueError("HeadSAM acts in the last nn.Linear of the model, and there is none; use another method")
        self._head = layers[-1]
        super().__init__(base, model, rho=rho, seed=seed)

    def perturbs_now(self) -> bool:
        """Never: the hook does it."""
        return False

    @contextmanager
    def around_passes(self) -> Iterator[None]:
        """Add rho ||r|| h / ||h|| to what the last linear layer sends back."""
        if self.rho == 0:
            yield
            return

        def hook(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            features = inputs[0]
            if not (features.requires_grad and output.requires_grad):
                return
            residual: list[Tensor] = []

            def take(r: Tensor) -> None:
                residual.append(torch.linalg.vector_norm(r, dim=-1, keepdim=True))

            def add(gradient: Tensor) -> Tensor:
                h = features.detach()
                length = torch.linalg.vector_norm(h, dim=-1, keepdim=True).clamp_min(torch.finfo(h.dtype).tiny)
                added: Tensor = gradient + self.rho * residual.pop().to(gradient) * h / length
                return added

            output.register_hook(take)  # type: ignore[no-untyped-call]
            features.register_hook(add)

        handle = self._head.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()
