"""SAM with Muon as the base: eps in Muon's own geometry, and a radius that follows the learning rate.

Muon steps by the nearest orthogonal matrix to its momentum, so all directions of a matrix move alike. Its own ball is
that of the spectral norm, and the worst point in it is theta + rho U V^T, where g = U S V^T. No trial has compared
this with SAM's round ball under Muon yet: it is here because it is asked for, and because it is a method in ten lines.

    python examples/muon.py
"""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import esam
from esam.optim import Batch


@final
class SpectralSAM(esam.SharpnessAware):
    """Step by the gradient at theta + rho U V^T, matrix by matrix.

    Args:
        base, model, loss, seed: As for SAM.
        relative: The radius of each matrix as a multiple of its group's learning rate: of Muon's own step, that is.
    """

    def __init__(self, base: Optimizer, model: nn.Module, *, relative: float = 1.0, **common: Any) -> None:
        self.relative = relative
        super().__init__(base, model, rho=1.0, **common)

    def finish(self, batch: Batch) -> None:
        """Return g(theta + rho U V^T)."""
        rates = [float(group["lr"]) for group in self.param_groups for _ in group["params"]]
        g = batch.first.only(batch.radii)
        eps = [polar(t) * (batch.radii[n] * self.relative * rates[n]) for n, t in g]
        with self.at(g.like(g.index, eps)):
            batch.backward()


def polar(g: Tensor) -> Tensor:
    """Return U V^T; zero where g has no direction.

    >>> polar(torch.diag(torch.tensor([3.0, -2.0])))
    tensor([[ 1.,  0.],
            [ 0., -1.]])
    """
    u, s, vh = torch.linalg.svd(g.nan_to_num(0.0, 0.0, 0.0), full_matrices=False)
    return (u * (s > s.max() * torch.finfo(s.dtype).eps * max(g.shape))) @ vh + 0.0


def main(steps: int = 60) -> tuple[float, float]:
    """Train a small net on a rule; return the first and the last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32, bias=False), nn.ReLU(), nn.Linear(32, 2, bias=False))
    optimizer = SpectralSAM(torch.optim.Muon(model.parameters(), lr=0.02), model, seed=0)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 8)
        y = (x[:, 0] * x[:, 1] > 0).long()
        losses.append(float(optimizer.step(lambda x, y: F.cross_entropy(model(x), y), x, y)))
    return losses[0], losses[-1]


if __name__ == "__main__":
    print("loss: {:.3f} at first, {:.3f} at last".format(*main()))
