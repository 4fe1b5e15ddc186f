"""The methods as their papers write them: plain loops, one line a line. For readers and tests; nothing fast imports it.

Each returns the gradient that the base optimizer steps by. ``losses(keep)`` gives one loss per sample at the current
values of ``weights``; every tensor is perturbed by hand and put back by hand.

Slips of the ESAM paper's Algorithm 1, and what is done here: line 5 and equation 4 do not normalise the gradient (they
do, as SAM does); lines 9 to 12 stand inside the loop over weights (they run once a step); no tensor may be drawn (one
is, and its probability counts); |B+| is a share of the batch, rounded, at least one sample.
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
    losses: Losses, weights: list[Tensor], eps: list[Tensor], keep: Callable[[], slice | Tensor] = lambda: EVERYTHING
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
    return at_perturbed(losses, weights, [rho * g_n / norm(g) for g_n in g])


def asam(losses: Losses, weights: list[Tensor], rho: float, eta: float) -> list[Tensor]:
    """Algorithm 1 of Kwon et al.: T = |w| + eta, eps = rho T^2 g / ||T g||."""
    g = gradient(losses, weights)
    t = [w.detach().abs() + eta for w in weights]
    length = norm([t_n * g_n for t_n, g_n in zip(t, g, strict=True)])
    return at_perturbed(losses, weights, [rho * t_n * t_n * g_n / length for t_n, g_n in zip(t, g, strict=True)])


class LookSAM:
    """Algorithm 1 of Liu et al.: g_v is the part of g_s orthogonal to g; it is reused for k - 1 of k steps."""

    def __init__(self, rho: float, k: int, alpha: float) -> None:
        self.rho, self.k, self.alpha, self.t = rho, k, alpha, 0
        self.g_v: list[Tensor] = []

    def __call__(self, losses: Losses, weights: list[Tensor]) -> list[Tensor]:
        """Return the gradient of step t, and go on to t + 1."""
        g = gradient(losses, weights)
        if self.t % self.k == 0:
            g_s = at_perturbed(losses, weights, [self.rho * g_n / norm(g) for g_n in g])
            inner = sum(float((a * b).sum()) for a, b in zip(g, g_s, strict=True))
            cosine = inner / (norm(g) * norm(g_s))
            self.g_v = [s - norm(g_s) * cosine * g_n / norm(g) for s, g_n in zip(g_s, g, strict=True)]
        else:
            factor = self.alpha * norm(g) / norm(self.g_v)
            g_s = [g_n + factor * v for g_n, v in zip(g, self.g_v, strict=True)]
        self.t += 1
        return g_s


class FSAM:
    """Algorithm 1 of Li et al. (2024): m is a running mean of the gradients, and eps is along g - sigma m."""

    def __init__(self, rho: float, sigma: float, decay: float) -> None:
        self.rho, self.sigma, self.decay = rho, sigma, decay
        self.m: list[Tensor] = []

    def __call__(self, losses: Losses, weights: list[Tensor]) -> list[Tensor]:
        """Return the gradient of one step."""
        g = gradient(losses, weights)
        before = self.m or [torch.zeros_like(g_n) for g_n in g]
        self.m = [self.decay * m_n + (1 - self.decay) * g_n for m_n, g_n in zip(before, g, strict=True)]
        d = [g_n - self.sigma * m_n for g_n, m_n in zip(g, self.m, strict=True)]
        return at_perturbed(losses, weights, [self.rho * d_n / norm(d) for d_n in d])


def gsam(losses: Losses, weights: list[Tensor], rho: float, alpha: float) -> list[Tensor]:
    """Algorithm 1 of Zhuang et al. (2022): g_p - alpha times the part of g that is orthogonal to g_p."""
    g = gradient(losses, weights)
    g_p = at_perturbed(losses, weights, [rho * g_n / norm(g) for g_n in g])
    inner = sum(float((a * b).sum()) for a, b in zip(g, g_p, strict=True)) / norm(g_p) ** 2
    return [p - alpha * (g_n - inner * p) for p, g_n in zip(g_p, g, strict=True)]


class ESAM:
    """Algorithm 1 of the ESAM paper, its lines by number; the norm as in ``norm="full"``."""

    def __init__(self, rho: float, beta: float, gamma: float, generator: torch.Generator) -> None:
        self.rho, self.beta, self.gamma, self.generator = rho, beta, gamma, generator
        self.last_norm: list[float] = []

    def __call__(self, losses: Losses, weights: list[Tensor]) -> list[Tensor]:
        """Return the gradient of one step."""
        g = gradient(losses, weights)
        count, first_step = len(g), not self.last_norm
        chosen, probability = [True] * count, 1.0
        if self.beta < 1:  # 3-4
            chosen = [bool(draw < self.beta) for draw in torch.rand(count, generator=self.generator)]
            if not any(chosen):
                chosen[int(torch.randint(count, (), generator=self.generator))] = True
            probability = self.beta + (1 - self.beta) ** count / count
            if first_step:  # every tensor gets a norm to be remembered by
                chosen, probability = [True] * count, 1.0
        self.last_norm = [norm([g[n]]) if chosen[n] else self.last_norm[n] for n in range(count)]
        length = math.sqrt(sum(n * n for n in self.last_norm))
        eps = [
            self.rho / probability * g[n] / length if chosen[n] else torch.zeros_like(g[n])  # 5; 6-7
            for n in range(count)
        ]  # 9
        at_theta = losses(EVERYTHING).detach()
        return at_perturbed(  # 11; the base optimizer takes 12
            losses, weights, eps, lambda: self.b_plus(losses(EVERYTHING).detach() - at_theta)
        )

    def b_plus(self, rise: Tensor) -> slice | Tensor:
        """Return B+ (line 10): the share gamma whose loss rises most; the lower index wins a tie."""
        if self.gamma == 1:
            return EVERYTHING
        by_rise = sorted(range(len(rise)), key=lambda i: (-float(rise[i]), i))
        return torch.tensor(sorted(by_rise[: max(1, round(self.gamma * len(rise)))]))
