"""How far, and in which direction, are the weights pushed? Pure functions: (weights, gradients, rho) -> eps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

# Half-precision norms are kept in float32: a bf16 norm has 8 bits, an fp16 one overflows at 65,504.
_HALF = (torch.float16, torch.bfloat16)
_SMALL = 4096  # elements: below, a call costs more than its arithmetic, so such tensors are joined and measured as one


@dataclass(frozen=True)
class Eps:
    """A perturbation, eps_n = factors[n] * directions[n]: never multiplied out, so it costs no memory of its own."""

    directions: list[Tensor]
    factors: list[float]

    def add_to(self, weights: list[Tensor]) -> None:
        """Move the weights, in place, by eps."""
        factors = set(self.factors)
        if len(factors) == 1:
            add_scaled(weights, self.directions, factors.pop())
        for factor in factors:
            here = [i for i, f in enumerate(self.factors) if f == factor]
            add_scaled([weights[i] for i in here], [self.directions[i] for i in here], factor)

    def tensors(self) -> list[Tensor]:
        """Return eps multiplied out."""
        return [f * d for f, d in zip(self.factors, self.directions, strict=True)]


def add_scaled(tensors: list[Tensor], directions: list[Tensor], factor: float) -> None:
    """Add factor * directions in place."""
    if factor > 65504 and any(t.dtype == torch.float16 for t in tensors):  # alpha must be a number of their own type
        torch._foreach_add_(tensors, torch._foreach_mul(directions, factor))
    else:
        torch._foreach_add_(tensors, directions, alpha=factor)


def tensor_norms(tensors: Sequence[Tensor]) -> list[float]:
    """Return the l2 norm of each tensor; one device synchronisation for all of them."""
    if not tensors:
        return []
    norms = torch._foreach_norm(list(tensors), 2, dtype=_norm_dtype(tensors))
    values: list[float] = torch.stack([n.to(norms[0].device) for n in norms]).tolist()
    return values


def whole_norm(tensors: Sequence[Tensor]) -> float:
    """Return the l2 norm of all elements of all tensors."""
    vectors: list[Tensor] = []
    small: list[Tensor] = []
    parts: list[Tensor] = []
    for t in tensors:
        (vectors if t.dim() == 1 else small if t.numel() <= _SMALL else parts).append(t)
    if len({t.get_device() for t in vectors + small}) > 1:
        return root_sum_of_squares(tensor_norms(tensors))
    if vectors:
        parts.append(torch.cat(vectors))
    if small:
        parts.append(_flatten_dense_tensors(small))  # type: ignore[no-untyped-call]
    return root_sum_of_squares(tensor_norms(parts))


def root_sum_of_squares(norms: Sequence[float]) -> float:
    """Return the norm of a vector whose parts have these norms."""
    return math.sqrt(sum(n * n for n in norms))


def usable(norm: float) -> bool:
    """Tell whether a gradient of this norm gives a direction: not for zero, inf or NaN."""
    return math.isfinite(norm) and norm > 0


def l2_ascent(gradients: Sequence[Tensor], rho: Sequence[float], norm: float) -> Eps:
    """Return SAM's eps: ``rho * g / norm``, the norm being that of the whole gradient.

    ``rho`` has one value a tensor. A gradient without direction (norm zero, inf or NaN) gives eps = 0.

    >>> gradients = [torch.tensor([3.0, 4.0])]
    >>> l2_ascent(gradients, [0.5], whole_norm(gradients)).tensors()
    [tensor([0.3000, 0.4000])]
    """
    return _along(gradients, norm, rho)


def adaptive_ascent(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rho: Sequence[float],
    *,
    eta: float,
    norm_of: Callable[[Sequence[Tensor]], float] | None = None,
) -> Eps:
    """Return ASAM's eps: ``rho * T^2 g / ||T g||`` with ``T = |w| + eta``, element by element.

    ``norm_of`` is the norm of tensors of which these are only a part: shards of one rank.
    """
    t = torch._foreach_abs(list(weights))
    torch._foreach_add_(t, eta)
    scaled = torch._foreach_mul(t, list(gradients))
    norm = (norm_of or whole_norm)(scaled)
    torch._foreach_mul_(scaled, t)
    return _along(scaled, norm, rho)


def _along(directions: Sequence[Tensor], norm: float, rho: Sequence[float]) -> Eps:
    if not usable(norm):
        return Eps([torch.zeros_like(d) for d in directions], [1.0] * len(directions))
    return Eps(list(directions), [r / norm for r in rho])


def _norm_dtype(tensors: Sequence[Tensor]) -> torch.dtype | None:
    dtypes = {t.dtype for t in tensors}
    if not dtypes.intersection(_HALF):
        return None
    return torch.float64 if torch.float64 in dtypes else torch.float32
