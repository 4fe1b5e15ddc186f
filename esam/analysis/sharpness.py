"""How much does the loss rise nearby?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Objective = Callable[[Mapping[str, Tensor]], Tensor]
"""Parameters by name -> mean loss over a fixed set, the same each time it is asked."""


def sharpness(objective: Objective, parameters: Mapping[str, Tensor], *, rho: float) -> float:
    """Return the paper's R_S: the rise of the loss from theta to theta + rho g / ||g||, SAM's own eps.

    ``objective`` is called with dictionaries of the same names; ``parameters`` are only read.
    """
    if not rho > 0:
        raise ValueError(f"rho must be > 0, got {rho!r}")
    theta = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    with torch.enable_grad():
        loss = objective(theta)
        found = torch.autograd.grad(loss, list(theta.values()), allow_unused=True)
    gradients = {name: g for name, g in zip(theta, found, strict=True) if g is not None}
    norm = torch.stack([g.double().norm() for g in gradients.values()]).norm()
    if not torch.isfinite(norm):
        return float("nan")
    if norm == 0:
        return 0.0
    with torch.no_grad():
        moved = {
            name: p + (rho / norm).to(p.dtype) * gradients[name] if name in gradients else p
            for name, p in theta.items()
        }
        return float(objective(moved)) - float(loss)
