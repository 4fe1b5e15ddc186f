"""How curved is the loss at theta? The Hessian's spectrum by its products with vectors, never the matrix itself."""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .objective import Objective, Parameters, repeats, weighted_parts

KAPPA, MARGIN = 3.0, 0.05
"""How wide an eigenvalue is smoothed, and how far beyond the spectrum the density goes (Papyan, 2020, D.2)."""


class Estimate(NamedTuple):
    """A number that was estimated from random vectors."""

    value: float
    error: float
    """The standard error of the value; NaN for a single vector."""


class Density(NamedTuple):
    """Where the eigenvalues lie: the density integrates to 1."""

    eigenvalues: Tensor
    density: Tensor


def top_eigenvalues(
    objective: Objective, parameters: Parameters, *, k: int = 1, tolerance: float = 1e-3, seed: int = 0
) -> list[float]:
    """Return the k largest eigenvalues of the Hessian, the largest first, to this relative tolerance.

    >>> objective = lambda p: (torch.tensor([3.0, 1.0, 2.0]) * p["w"] ** 2).sum() / 2
    >>> [round(value, 4) for value in top_eigenvalues(objective, {"w": torch.ones(3)}, k=2)]
    [3.0, 2.0]
    """
    size = sum(p.numel() for p in parameters.values())
    if not 1 <= k <= size:
        raise ValueError(f"k must be in 1..{size}, the number of parameters, got {k!r}")
    hessian = _Hessian(objective, parameters)
    if k == size or size <= 3:  # Lanczos finds fewer eigenvalues than there are; so few parameters are dense anyway
        dense = torch.stack([hessian(column) for column in torch.eye(size, **hessian.like)])
        top: list[float] = torch.linalg.eigvalsh((dense + dense.T) / 2).flip(0)[:k].tolist()
        return top
    return sorted(hessian.extremes(k=k, which="LA", tolerance=tolerance, seed=seed), reverse=True)


def hessian_trace(objective: Objective, parameters: Parameters, *, vectors: int = 30, seed: int = 0) -> Estimate:
    """Return the Hessian's trace, Hutchinson's mean over random sign vectors, with its standard error."""
    if vectors < 1:
        raise ValueError(f"vectors must be 1 or more, got {vectors!r}")
    hessian = _Hessian(objective, parameters)
    generator = hessian.generator(seed)
    signs = (torch.empty(hessian.size, **hessian.like).bernoulli_(0.5, generator=generator) for _ in range(vectors))
    draws = [float(z @ hessian(z)) for z in (2 * s - 1 for s in signs)]
    error = statistics.stdev(draws) / math.sqrt(vectors) if vectors > 1 else math.nan
    return Estimate(statistics.fmean(draws), error)


def spectral_density(
    objective: Objective, parameters: Parameters, *, lanczos: int = 60, draws: int = 3, points: int = 512, seed: int = 0
) -> Density:
    """Return the density of the Hessian's eigenvalues, smoothed, from Lanczos iterations (Papyan, 2020)."""
    size = sum(p.numel() for p in parameters.values())
    if not 2 <= lanczos <= size:
        raise ValueError(f"lanczos must be in 2..{size}, the number of parameters, got {lanczos!r}")
    hessian = _Hessian(objective, parameters)
    low, high = sorted(hessian.extremes(k=2, which="BE", tolerance=1e-2, seed=seed))
    low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
    grid = torch.linspace(low, high, points, dtype=torch.float64)
    width = (high - low) / (lanczos - 1) / math.sqrt(8 * math.log(KAPPA))
    generator, density = hessian.generator(seed), torch.zeros_like(grid)
    for _ in range(draws):
        nodes, vectors = torch.linalg.eigh(_tridiagonal(hessian, lanczos, generator))
        bumps = torch.exp(-(((grid - nodes[:, None]) / width) ** 2) / 2) / (width * math.sqrt(2 * math.pi))
        density += (vectors[0, :, None] ** 2 * bumps).sum(0) / draws
    return Density(grid, density)


class _Hessian:
    """The Hessian by its products with vectors, each of two backward passes a batch."""

    def __init__(self, objective: Objective, parameters: Parameters) -> None:
        with sdpa_kernel(SDPBackend.MATH):
            repeats(objective, parameters)
        self.parts = weighted_parts(objective)  # batch by batch: no more memory than one batch takes
        self.theta = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
        first = next(iter(self.theta.values()))
        self.like: dict[str, Any] = {"dtype": first.dtype, "device": first.device}
        self.size = sum(p.numel() for p in self.theta.values())

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector of all parameters, flattened in their order."""
        weights = list(self.theta.values())
        sizes = [p.numel() for p in weights]
        pieces = [v.view_as(p) for v, p in zip(torch.split(vector, sizes), weights, strict=True)]
        product = torch.zeros_like(vector)
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the one form that has a second derivative
            for part, share in self.parts:
                gradient = torch.autograd.grad(share * part(self.theta), weights, create_graph=True, allow_unused=True)
                # what the loss does not use, or uses linearly, has no second derivative
                curved = [(g, v) for g, v in zip(gradient, pieces, strict=True) if g is not None and g.requires_grad]
                if curved:
                    gs, vs = zip(*curved, strict=True)
                    second = torch.autograd.grad(gs, weights, vs, materialize_grads=True)
                    product += torch.cat([s.flatten() for s in second])
        return product

    def generator(self, seed: int) -> torch.Generator:
        """Return a generator where the parameters are; the global stream is left alone."""
        return torch.Generator(self.like["device"]).manual_seed(seed)

    def extremes(self, *, k: int, which: str, tolerance: float, seed: int) -> list[float]:
        """Return eigenvalues from one end of the spectrum, or from both."""
        try:
            from scipy.sparse.linalg import LinearOperator, eigsh
        except ImportError as error:
            raise ImportError(f"eigenvalues need scipy ({error}); run: pip install torch-esam[analysis]") from error

        def product(vector: Any) -> Any:
            return self(torch.as_tensor(vector, **self.like).flatten()).double().cpu().numpy()

        start = torch.randn(self.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
        hessian = LinearOperator((self.size, self.size), matvec=product, dtype="float64")
        values = eigsh(hessian, k=k, which=which, tol=tolerance, v0=start, return_eigenvectors=False)
        return [float(value) for value in values]


def _tridiagonal(hessian: _Hessian, steps: int, generator: torch.Generator) -> Tensor:
    """Return the matrix of Lanczos iterations from a random vector, without reorthogonalisation."""
    v = torch.randn(hessian.size, generator=generator, **hessian.like)
    v, before, beta = v / v.norm(), torch.zeros_like(v), v.new_zeros(())
    alphas, betas = [], []
    for _ in range(steps):
        following = hessian(v) - beta * before
        alphas.append(following @ v)
        following -= alphas[-1] * v
        beta = following.norm()
        betas.append(beta)
        v, before = following / beta, v
    diagonal, off_diagonal = torch.stack(alphas).double().cpu(), torch.stack(betas[:-1]).double().cpu()
    return torch.diag(diagonal) + torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
