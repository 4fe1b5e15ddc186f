"""How far, and in which direction, are the weights pushed? Pure functions: (weights, gradients, rho) -> eps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Half-precision norms are kept in float32: a bf16 norm has 8 bits, an fp16 one overflows at 65,504.
_HALF = (torch.float16, torch.bfloat16)


def tensor_norms(tensors: Sequence[Tensor]) -> list[float]:
    """Return the l2 norm of each tensor; one device synchronisation for all of them."""
    if not tensors:
        return []
    dtype = torch.float32 if any(t.dtype in _HALF for t in tensors) else None
    norms = torch._foreach_norm(list(tensors), 2, dtype=dtype)
    values: list[float] = torch.stack([n.to(norms[0].device) for n in norms]).tolist()
    return values


def whole_norm(norms: Sequence[float]) -> float:
    """Return the l2 norm of the vector whose parts have these norms."""
    return math.sqrt(sum(n * n for n in norms))


def usable(norm: float) -> bool:
    """Tell whether a gradient of this norm gives a direction: not for zero, inf or NaN."""
    return math.isfinite(norm) and norm > 0


def l2_ascent(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], rho: Sequence[float], *, norm: float | None = None
) -> list[Tensor]:
    """Return SAM's eps: ``rho * g / ||g||``, one tensor for each weight.

    ``rho`` has one value a tensor. ``norm`` replaces the norm of ``gradients`` where they are only a part of the
    whole gradient. A gradient without direction (zero, inf or NaN) gives eps = 0.
    """
    if norm is None:
        norm = whole_norm(tensor_norms(gradients))
    if not usable(norm):
        return [torch.zeros_like(w) for w in weights]
    return list(torch._foreach_mul(list(gradients), [r / norm for r in rho]))


def adaptive_ascent(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], rho: Sequence[float], *, eta: float
) -> list[Tensor]:
    """Return ASAM's eps: ``rho * T^2 g / ||T g||`` with ``T = |w| + eta``, element by element."""
    t = torch._foreach_abs(list(weights))
    torch._foreach_add_(t, eta)
    scaled = torch._foreach_mul(t, list(gradients))
    norm = whole_norm(tensor_norms(scaled))
    if not usable(norm):
        return [torch.zeros_like(w) for w in weights]
    torch._foreach_mul_(scaled, t)
    torch._foreach_mul_(scaled, [r / norm for r in rho])
    return list(scaled)
