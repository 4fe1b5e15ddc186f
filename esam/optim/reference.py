"""The methods as their papers write them: plain loops, one line a line. For readers and tests; nothing fast imports it.

Each function returns the gradient that the base optimizer steps by. ``losses(keep)`` gives one loss per sample at the
current values of ``weights``; every tensor is perturbed by hand and put back by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Losses = Callable[[slice | Tensor], Tensor]
EVERYTHING = slice(None)


def gradient(losses: Losses, weights: list[Tensor], keep: slice | Tensor = EVERYTHING) -> list[Tensor]:
    """Return the gradient of the mean loss of the samples ``keep``."""
    return [g.clone() for g in torch.autograd.grad(losses(keep).mean(), weights)]


def norm(tensors: list[Tensor]) -> float:
    """Return the l2 norm of all elements of all tensors."""
    return math.sqrt(sum(float((t.double() ** 2).sum()) for t in tensors))


def at_perturbed(
    losses: Losses, weights: list[Tensor], eps: list[Tensor], keep: Callable[[], slice | Tensor]
) -> list[Tensor]:
    """Return the gradient at theta + eps of the samples that ``keep``, called there, names."""
    theta = [w.detach().clone() for w in weights]
    for w, e in zip(weights, eps, strict=True):
        w.data.copy_(w.data + e)
    g = gradient(losses, weights, keep())
    for w, t in zip(weights, theta, strict=True):
        w.data.copy_(t)
    return g


def sam(losses: Losses, weights: list[Tensor], rho: float) -> list[Tensor]:
    """Algorithm 2 of the ESAM paper, with the normalisation of Foret et al. (eq. 2)."""
    g = gradient(losses, weights)
    eps = [rho * g_n / norm(g) for g_n in g]
    return at_perturbed(losses, weights, eps, lambda: EVERYTHING)


def asam(losses: Losses, weights: list[Tensor], rho: float, eta: float) -> list[Tensor]:
    """Algorithm 1 of Kwon et al.: T = |w| + eta, eps = rho T^2 g / ||T g||."""
    g = gradient(losses, weights)
    t = [w.detach().abs() + eta for w in weights]
    length = norm([t_n * g_n for t_n, g_n in zip(t, g, strict=True)])
    eps = [rho * t_n * t_n * g_n / length for t_n, g_n in zip(t, g, strict=True)]
    return at_perturbed(losses, weights, eps, lambda: EVERYTHING)


class LookSAM:
    """Algorithm 1 of Liu et al.: g_v is the part of g_s orthogonal to g; it is reused for k - 1 of k steps."""

    def __init__(self, rho: float, k: int, alpha: float) -> None:
        self.rho, self.k, self.alpha = rho, k, alpha
        self.t = 0
        self.g_v: list[Tensor] = []

    def __call__(self, losses: Losses, weights: list[Tensor]) -> list[Tensor]:
        """Return the gradient of step t, and go on to t + 1."""
        g = gradient(losses, weights)
        if self.t % self.k == 0:
            eps = [self.rho * g_n / norm(g) for g_n in g]
            g_s = at_perturbed(losses, weights, eps, lambda: EVERYTHING)
            inner = sum(float((a * b).sum()) for a, b in zip(g, g_s, strict=True))
            cosine = inner / (norm(g) * norm(g_s))
            self.g_v = [s - norm(g_s) * cosine * g_n / norm(g) for s, g_n in zip(g_s, g, strict=True)]
        else:
            factor = self.alpha * norm(g) / norm(self.g_v)
            g_s = [g_n + factor * v for g_n, v in zip(g, self.g_v, strict=True)]
        self.t += 1
        return g_s


class ESAM:
    """Algorithm 1 of the ESAM paper; the norm as in ``norm="full"``, B+ as the k samples whose loss rises most."""

    def __init__(self, rho: float, beta: float, gamma: float, generator: torch.Generator) -> None:
        self.rho, self.beta, self.gamma, self.generator = rho, beta, gamma, generator
        self.last_norm: list[float] = []

    def __call__(self, losses: Losses, weights: list[Tensor]) -> list[Tensor]:
        """Return the gradient of one step."""
        g = gradient(losses, weights)
        if self.beta == 1:
            chosen, scale = [True] * len(g), 1.0
        else:
            draws = torch.rand(len(g), generator=self.generator)
            chosen = [bool(draw < self.beta) for draw in draws]
            if not any(chosen):
                chosen[int(torch.randint(len(g), (), generator=self.generator))] = True
            first_step = not self.last_norm
            if first_step:
                chosen = [True] * len(g)
            scale = 1.0 if first_step else 1 / (self.beta + (1 - self.beta) ** len(g) / len(g))
        if not self.last_norm:
            self.last_norm = [0.0] * len(g)
        for n in range(len(g)):
            if chosen[n]:
                self.last_norm[n] = norm([g[n]])
        length = math.sqrt(sum(n * n for n in self.last_norm))
        eps = [scale * self.rho * g[n] / length if chosen[n] else torch.zeros_like(g[n]) for n in range(len(g))]
        at_theta = losses(EVERYTHING).detach()
        return at_perturbed(losses, weights, eps, lambda: self.b_plus(losses(EVERYTHING).detach() - at_theta))

    def b_plus(self, rise: Tensor) -> slice | Tensor:
        """Return B+: the share gamma whose loss rises most; the lower index wins a tie."""
        size = len(rise)
        if self.gamma == 1:
            return EVERYTHING
        by_rise = sorted(range(size), key=lambda i: (-float(rise[i]), i))
        return torch.tensor(sorted(by_rise[: max(1, round(self.gamma * size))]))
