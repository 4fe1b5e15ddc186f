"""How far, and in which direction, are the weights moved; and how do they come back?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .gradients import Gradients

Radii = Mapping[int, float]
"""The radius of each tensor, by its index; negative where the base maximises: the worst point nearby lies downhill."""

_HALF = {torch.float16, torch.bfloat16}


def l2_ascent(g: Gradients, radii: Radii) -> Gradients:
    """Return SAM's eps, ``rho g / ||g||``: the norm is that of all tensors that have a radius.

    A gradient without direction (its norm is zero, inf or NaN) gives eps = 0.

    >>> l2_ascent(Gradients([0], [torch.tensor([3.0, 4.0])]), {0: 0.5}).tensors
    [tensor([0.3000, 0.4000])]
    """
    g = g.only(radii)
    return along(g, radii, g.norm())


def adaptive_ascent(g: Gradients, radii: Radii, weights: Sequence[Tensor], *, eta: float) -> Gradients:
    """Return ASAM's eps, ``rho T^2 g / ||T g||`` with ``T = |w| + eta``, element by element.

    ``weights`` are those of all the optimizer's tensors.
    """
    g = g.only(radii)
    t = torch._foreach_abs([weights[n] for n in g.index])
    torch._foreach_add_(t, eta)
    scaled = torch._foreach_mul(t, g.tensors)
    norm = g.like(g.index, scaled).norm()
    return along(g.like(g.index, torch._foreach_mul(scaled, t)), radii, norm, own_norm=False)


def spectral_ascent(g: Gradients, radii: Radii) -> Gradients:
    """Return the worst eps in the ball of the spectral norm, Muon's own: ``rho U V^T``, g = U S V^T, matrix by matrix.

    A vector is one column, a filter one row; a gradient without direction gives eps = 0.

    >>> spectral_ascent(Gradients([0], [torch.diag(torch.tensor([3.0, -2.0]))]), {0: 0.5}).tensors
    [tensor([[ 0.5000,  0.0000],
            [ 0.0000, -0.5000]])]
    """
    g = g.only(radii)
    return g.like(g.index, [_polar(t) * radii[n] for n, t in g])


def _polar(g: Tensor) -> Tensor:
    matrix = g.reshape(g.shape[0] if g.dim() else 1, -1).nan_to_num(0.0, 0.0, 0.0)
    u, s, vh = torch.linalg.svd(matrix.float() if g.dtype in _HALF else matrix, full_matrices=False)
    directions = s > s.max() * torch.finfo(s.dtype).eps * max(matrix.shape)
    polar: Tensor = (u * directions) @ vh + 0.0
    return polar.view_as(g)


def along(direction: Gradients, radii: Radii, norm: Tensor, *, own_norm: bool = True) -> Gradients:
    """Return ``rho / norm`` times the direction, tensor by tensor; zero where the norm is zero, inf or NaN.

    ``own_norm``: it is the direction's own norm, or a larger one.
    """
    if not direction.tensors:
        return direction
    if not _HALF.isdisjoint([t.dtype for t in direction.tensors]):  # rho / norm may exceed what half precision can hold
        direction = direction.like(direction.index, [t.float() if t.dtype in _HALF else t for t in direction.tensors])
    inverse, rho = norm.reciprocal(), [radii[n] for n in direction.index]
    finite = own_norm and _is_known_positive(inverse)
    inverse = inverse if finite else torch.nan_to_num(inverse, 0.0, 0.0, 0.0)
    if rho.count(rho[0]) == len(rho):
        eps = direction * (inverse * rho[0])
    else:
        eps = direction.like(direction.index, torch._foreach_mul(direction.tensors, rho)) * inverse
    if not finite:
        for e in eps.tensors:  # 0 * inf and 0 * NaN
            (torch.view_as_real(e) if e.is_complex() else e).nan_to_num_(0.0, 0.0, 0.0)
    return eps


def _is_known_positive(inverse: Tensor) -> bool:
    """Tell whether 1 / norm is a positive number, so that all in a gradient is finite; False where that would wait."""
    return type(inverse) is Tensor and inverse.is_cpu and 0 < inverse.item() < math.inf


class PassNeeded(BaseException):
    """Raised inside ``finish`` where the next pass is one that the caller's own loop runs: the weights stay there."""


class perturbed:
    """Hold weights at theta + eps inside a ``with`` block; leaving it restores theta bit for bit, whatever happens.

    The tensors and their storage stay the caller's: nothing is swapped, so views, compiled graphs and other optimizers
    keep seeing the same weights. ``on_move`` is called whenever the weights have moved: by default, autocast's cached
    low-precision copies of them are dropped.

    A class, and not a generator: an interrupt can leave a generator suspended, holding theta, which comes back when
    the exception that kept it is dropped. ``restore`` may be called any number of times, and from anywhere.

    >>> weight = torch.tensor([1.0, 2.0])
    >>> with perturbed([weight], [torch.tensor([0.5, 0.5])]):
    ...     print(weight)
    tensor([1.5000, 2.5000])
    >>> weight
    tensor([1., 2.])
    """

    __slots__ = ("eps", "on_move", "theta", "weights")

    def __init__(
        self,
        weights: Sequence[Tensor],
        eps: Sequence[Tensor],
        *,
        on_move: Callable[[], None] = torch.clear_autocast_cache,
    ) -> None:
        self.weights, self.eps, self.on_move = list(weights), list(eps), on_move
        self.theta: list[Tensor] | None = None

    def __enter__(self) -> perturbed:
        if self.weights:
            before = torch.is_grad_enabled()
            torch._C._set_grad_enabled(False)
            # copy, not subtract: adding and removing eps loses bits; known to restore before the first weight moves
            self.theta = [w.clone() for w in self.weights]
            torch._foreach_add_(self.weights, self.eps)
            torch._C._set_grad_enabled(before)
            self.on_move()
        self.eps = []  # the second pass needs the memory
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not PassNeeded:
            self.restore()

    def restore(self) -> None:
        """Put theta back, if it is not."""
        if self.theta is not None:
            before = torch.is_grad_enabled()
            torch._C._set_grad_enabled(False)
            torch._foreach_copy_(self.weights, self.theta)
            self.theta = None
            torch._C._set_grad_enabled(before)
            self.on_move()
