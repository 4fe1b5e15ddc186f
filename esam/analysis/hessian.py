"""How curved is the loss at theta? The Hessian's spectrum through curvlinops, never the matrix itself."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .objective import Objective, Parameters, random_stream_kept, repeats, weighted_parts


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
    with _operator(objective, parameters) as hessian:
        if k == size or size <= 3:  # Lanczos finds fewer eigenvalues than there are; so few parameters are dense anyway
            dense = hessian @ torch.eye(size, dtype=hessian.dtype, device=hessian.device)
            found: list[float] = torch.linalg.eigvalsh((dense + dense.T) / 2).flip(0)[:k].tolist()
            return found
        from scipy.sparse.linalg import eigsh

        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(size, generator=generator, dtype=torch.float64).numpy()
        values = eigsh(hessian.to_scipy(), k=k, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)
    return sorted((float(value) for value in values), reverse=True)


def hessian_trace(objective: Objective, parameters: Parameters, *, vectors: int = 30, seed: int = 0) -> Estimate:
    """Return the Hessian's trace, Hutchinson's mean over random sign vectors, with its standard error."""
    if vectors < 1:
        raise ValueError(f"vectors must be 1 or more, got {vectors!r}")
    with _operator(objective, parameters) as hessian, _seeded(seed, parameters):
        from curvlinops import hutchinson_trace

        # one vector at a time: together they would take that much more memory
        draws = [float(hutchinson_trace(hessian, num_matvecs=1)) for _ in range(vectors)]
    error = statistics.stdev(draws) / math.sqrt(vectors) if vectors > 1 else math.nan
    return Estimate(statistics.fmean(draws), error)


def spectral_density(
    objective: Objective,
    parameters: Parameters,
    *,
    lanczos: int = 60,
    draws: int = 3,
    points: int = 512,
    seed: int = 0,
) -> Density:
    """Return the density of the Hessian's eigenvalues, smoothed, from Lanczos iterations (Papyan, 2020)."""
    size = sum(p.numel() for p in parameters.values())
    if not 2 <= lanczos <= size:
        raise ValueError(f"lanczos must be in 2..{size}, the number of parameters, got {lanczos!r}")
    with _operator(objective, parameters) as hessian, _seeded(seed, parameters):
        from curvlinops.papyan2020traces.spectrum import lanczos_approximate_spectrum
        from scipy.sparse.linalg import eigsh

        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(size, generator=generator, dtype=torch.float64).numpy()
        ends = eigsh(hessian.to_scipy(), k=2, which="BE", tol=1e-2, v0=start, return_eigenvectors=False)
        eigenvalues, density = lanczos_approximate_spectrum(
            hessian, lanczos, num_points=points, num_repeats=draws, boundaries=(float(min(ends)), float(max(ends)))
        )
    return Density(eigenvalues.double().cpu(), density.double().cpu())


class _Values(nn.Module):
    """An objective as curvlinops takes it: a module with the parameters, whose input is the number of a part."""

    def __init__(self, objective: Objective, parameters: Parameters) -> None:
        super().__init__()
        self.names = list(parameters)
        self.values = nn.ParameterList([nn.Parameter(p.detach().clone()) for p in parameters.values()])
        self.parts = weighted_parts(objective)  # batch by batch: no more memory than one batch takes

    def forward(self, number: Tensor) -> Tensor:
        part, share = self.parts[int(number)]
        return share * part(dict(zip(self.names, self.values, strict=True)))


class _Itself(nn.Module):
    """The loss of a prediction that is a loss already; parts are summed."""

    reduction = "sum"

    def forward(self, prediction: Tensor, _: Tensor) -> Tensor:
        return prediction


@contextmanager
def _operator(objective: Objective, parameters: Parameters) -> Iterator[Any]:
    """Give the Hessian as curvlinops' linear operator; attention in the one form that has a second derivative."""
    curvlinops = _curvlinops()
    with sdpa_kernel(SDPBackend.MATH):
        repeats(objective, parameters)
        module = _Values(objective, parameters)
        data = [(torch.tensor([number]), torch.zeros(1)) for number in range(len(module.parts))]
        yield _double_backward(curvlinops)(
            module, _Itself(), list(module.values), data, check_deterministic=False, num_data=len(data)
        )


def _double_backward(curvlinops: Any) -> Any:
    """Return curvlinops' Hessian with products by two backward passes.

    Its own take a forward-mode derivative of a backward pass, which GroupNorm and others do not have.
    """

    class Hessian(curvlinops.HessianLinearOperator):  # type: ignore[misc]
        def _matmat_batch(self, X: Tensor, y: Tensor, M: list[Tensor]) -> list[Tensor]:
            with torch.enable_grad():
                loss = self._model_func(X)
                found = torch.autograd.grad(loss, self._params, create_graph=True, allow_unused=True)
            # what the loss does not use, or uses linearly, has no second derivative
            curved = [n for n, g in enumerate(found) if g is not None and g.requires_grad]
            if not curved:
                return [torch.zeros_like(m) for m in M]
            columns = []
            for column in range(M[0].shape[-1]):
                vector = [m[..., column] for m in M]
                second = torch.autograd.grad(
                    [found[n] for n in curved],
                    self._params,
                    [vector[n] for n in curved],
                    retain_graph=True,
                    allow_unused=True,
                )
                columns.append([torch.zeros_like(v) if s is None else s for s, v in zip(second, vector, strict=True)])
            return [torch.stack(parts, dim=-1) for parts in zip(*columns, strict=True)]

    return Hessian


def _curvlinops() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a dependency, when it is first imported
            import curvlinops
    except ImportError as error:
        raise ImportError(f"the Hessian needs curvlinops ({error}); run: pip install torch-esam[analysis]") from error
    return curvlinops


@contextmanager
def _seeded(seed: int, parameters: Parameters) -> Iterator[None]:
    """Let curvlinops draw from torch's global stream as if it began at the seed; it goes on afterwards as it was."""
    with random_stream_kept(parameters.values()):
        torch.manual_seed(seed)
        yield
