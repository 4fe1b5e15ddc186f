"""How curved is the loss at theta? By products of the Hessian with vectors, never the matrix itself."""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .objective import Objective, Parameters, repeats, weighted_parts


class Estimate(NamedTuple):
    """A number that was estimated from random vectors."""

    value: float
    error: float
    """The standard error of the value; NaN for a single vector."""


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
    return hessian.largest(k, tolerance, seed)


def hessian_trace(objective: Objective, parameters: Parameters, *, vectors: int = 30, seed: int = 0) -> Estimate:
    """Return the Hessian's trace, Hutchinson's mean over random sign vectors, with its standard error."""
    if vectors < 1:
        raise ValueError(f"vectors must be 1 or more, got {vectors!r}")
    hessian = _Hessian(objective, parameters)
    generator = torch.Generator(hessian.like["device"]).manual_seed(seed)  # the global stream is left alone
    signs = (torch.empty(hessian.size, **hessian.like).bernoulli_(0.5, generator=generator) for _ in range(vectors))
    draws = [float(z @ hessian(z)) for z in (2 * s - 1 for s in signs)]
    error = statistics.stdev(draws) / math.sqrt(vectors) if vectors > 1 else math.nan
    return Estimate(statistics.fmean(draws), error)


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

    def largest(self, k: int, tolerance: float, seed: int) -> list[float]:
        """Return the k largest eigenvalues, fewer than there are."""
        try:
            from scipy.sparse.linalg import LinearOperator, eigsh
        except ImportError as error:
            raise ImportError(f"eigenvalues need scipy ({error}); run: pip install torch-esam[analysis]") from error

        def product(vector: Any) -> Any:
            return self(torch.as_tensor(vector, **self.like).flatten()).double().cpu().numpy()

        start = torch.randn(self.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
        hessian = LinearOperator((self.size, self.size), matvec=product, dtype="float64")
        values = eigsh(hessian, k=k, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)
        return sorted(map(float, values), reverse=True)
