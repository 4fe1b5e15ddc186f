"""SAM with Muon as the base: eps in Muon's own geometry, and a radius that follows the learning rate.

Muon steps by the nearest orthogonal matrix to its momentum, so all directions of a matrix move alike. Its own ball is
that of the spectral norm, and the worst point in it is theta + rho U V^T, where g = U S V^T. No trial has compared
this with SAM's round ball under Muon yet: it is here because it is asked for.

    python examples/muon.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import esam


def main(steps: int = 60) -> tuple[float, float]:
    """Train a small net on a rule; return the first and the last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32, bias=False), nn.ReLU(), nn.Linear(32, 2, bias=False))
    muon = torch.optim.Muon(model.parameters(), lr=0.02)
    optimizer = esam.SAM(muon, model, geometry="spectral", rho=1.0, seed=0)  # as far as a step of Muon's
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 8)
        y = (x[:, 0] * x[:, 1] > 0).long()
        losses.append(float(optimizer.step(lambda x, y: F.cross_entropy(model(x), y), x, y)))
    return losses[0], losses[-1]


if __name__ == "__main__":
    print("loss: {:.3f} at first, {:.3f} at last".format(*main()))
