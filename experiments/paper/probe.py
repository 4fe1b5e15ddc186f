"""What goes on inside a batch? Probed after an epoch in train mode, on the images that the run trains on.

The net is only read: its weights are handed over by ``functional_call``, with copies of its buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

Weights = Mapping[str, Tensor]
BETAS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TS = (-0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
"""Where on the line from theta (0) through theta + eps (1) the losses of B+ and B- are taken."""
MASKS = 3
MEAN_BETA = 0.6


class Batch:
    """The loss of one batch as a function of the weights, in train mode."""

    def __init__(self, net: nn.Module, x: Tensor, y: Tensor) -> None:
        self.net, self.x, self.y = net, x, y
        self.theta = {name: p.detach().clone() for name, p in net.named_parameters()}
        self.buffers = {name: b.detach().clone() for name, b in net.named_buffers()}

    def losses(self, weights: Weights, rows: Tensor | None = None) -> Tensor:
        """Return one loss a sample, of all samples or of some."""
        x, y = (self.x, self.y) if rows is None else (self.x[rows], self.y[rows])
        buffers = {name: b.clone() for name, b in self.buffers.items()}
        return F.cross_entropy(functional_call(self.net, ({**weights}, buffers), (x,)), y, reduction="none")

    def gradient(self, weights: Weights, rows: Tensor | None = None) -> Weights:
        """Return the gradient of the mean loss."""
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        found = torch.autograd.grad(self.losses(leaves, rows).mean(), list(leaves.values()))
        return dict(zip(leaves, found, strict=True))

    def at(self, eps: Weights, t: float = 1.0) -> Weights:
        """Return theta + t eps."""
        return {name: w + t * eps[name] for name, w in self.theta.items()}


def dot(a: Weights, b: Weights) -> float:
    """Return the inner product."""
    return float(sum((a[name] * b[name]).sum() for name in a))


def cosine(a: Weights, b: Weights) -> float:
    """Return the cosine of the angle between two directions."""
    length = (dot(a, a) * dot(b, b)) ** 0.5
    return dot(a, b) / length if length else 0.0


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's correlation."""
    ranks = [values.argsort().argsort().double() for values in (a, b)]
    found = torch.corrcoef(torch.stack(ranks))[0, 1]
    return float(found) if torch.isfinite(found) else 0.0


def swp_eps(gradient: Weights, rho: float, beta: float, generator: torch.Generator) -> Weights:
    """Return one of SWP's perturbations: each tensor drawn with probability beta, divided by beta."""
    norm = dot(gradient, gradient) ** 0.5 or 1.0
    drawn = torch.rand(len(gradient), generator=generator) < beta
    return {
        name: (rho / norm / beta) * g if kept else torch.zeros_like(g)
        for (name, g), kept in zip(gradient.items(), drawn.tolist(), strict=True)
    }


def inside(batch: Batch, rho: float, gamma: float, generator: torch.Generator) -> dict[str, float]:
    """Return cosines of the gradients of B+, B- and a random half to B's at theta + eps, and what else A.2 says.

    "correlation" is that of a sample's rise with its loss; "alignment" the cosine of eps to the gradient of the samples
    that rise (alpha = 0).
    """
    gradient = batch.gradient(batch.theta)
    eps = {name: rho / (dot(gradient, gradient) ** 0.5 or 1.0) * g for name, g in gradient.items()}
    there = batch.at(eps)
    with torch.no_grad():
        start = batch.losses(batch.theta)
        rise = batch.losses(there) - start
    order = rise.argsort(descending=True, stable=True)
    count = max(1, round(gamma * len(rise)))
    whole = batch.gradient(there)
    random = torch.randperm(len(rise), generator=generator)[:count]
    sets = {"B+": order[:count], "B-": order[count:], "random": random}
    found = {f"cosine {name}": cosine(batch.gradient(there, rows), whole) for name, rows in sets.items()}
    rising = (rise > 0).nonzero().flatten()
    aligned = cosine(batch.gradient(batch.theta, rising), eps) if len(rising) > 1 else 0.0
    return {**found, "correlation": rank_correlation(rise, start), "alignment": aligned}


def deeper(batch: Batch, rho: float, gamma: float, masks: int, generator: torch.Generator) -> dict[str, Any]:
    """Return zeta of SAM's eps and of SWP's for each beta, their lengths, losses along eps, and SWP's mean eps."""
    gradient = batch.gradient(batch.theta)
    norm = dot(gradient, gradient) ** 0.5 or 1.0
    eps = {name: rho / norm * g for name, g in gradient.items()}
    with torch.no_grad():
        start = batch.losses(batch.theta)
        rise = batch.losses(batch.at(eps)) - start
        order = rise.argsort(descending=True, stable=True)
        count = max(1, round(gamma * len(rise)))

        def zeta(direction: Weights, t: float = 1.0) -> float:
            return abs(float(batch.losses(batch.at(direction, t)).mean() - start.mean()) - t * dot(direction, gradient))

        found: dict[str, Any] = {"zeta sam": zeta(eps)}
        for beta in BETAS:
            drawn = [swp_eps(gradient, rho, beta, generator) for _ in range(MASKS)]
            found[f"zeta {beta:g}"] = sum(map(zeta, drawn)) / MASKS
            found[f"length {beta:g}"] = sum(dot(one, one) ** 0.5 for one in drawn) / MASKS / rho
            found[f"zeta {beta:g} undivided"] = sum(zeta(one, beta) for one in drawn) / MASKS
        for t in TS:
            losses = batch.losses(batch.at(eps, t))
            found |= {
                f"B+ at {t:g}": float(losses[order[:count]].mean()),
                f"B- at {t:g}": float(losses[order[count:]].mean()),
            }
        mean = {name: torch.zeros_like(g) for name, g in gradient.items()}
        for _ in range(masks):
            for name, part in swp_eps(gradient, rho, MEAN_BETA, generator).items():
                mean[name] += part / masks
        off = {name: mean[name] - eps[name] for name in eps}
        found["mean cosine"] = cosine(mean, eps)
        found["mean norm"] = dot(mean, mean) ** 0.5 / rho
        # by chance alone: each tensor's part of eps has the variance (1 - beta) / beta of its mask, over so many masks
        found["mean distance"] = dot(off, off) ** 0.5 / rho / ((1 - MEAN_BETA) / MEAN_BETA / masks) ** 0.5
    return found
