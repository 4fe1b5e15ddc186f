"""How do the weights move to theta + eps, and how do they come back?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from .ascent import Eps


@contextmanager
def perturbed(weights: Sequence[Tensor], eps: Eps) -> Iterator[list[Tensor]]:
    """Hold the weights at theta + eps; yield theta; leaving restores theta bit for bit and in place, also on an error.

    The tensors and their storage stay the caller's: nothing is swapped, so views, compiled graphs and other optimizers
    keep seeing the same weights.

    >>> weight = torch.tensor([1.0, 2.0])
    >>> with perturbed([weight], Eps([torch.ones(2)], [0.5])):
    ...     print(weight)
    tensor([1.5000, 2.5000])
    >>> weight
    tensor([1., 2.])
    """
    weights = list(weights)
    if not weights:
        yield []
        return
    with torch.no_grad():
        # copy, not subtract: adding and removing eps loses bits
        theta = _clones(weights)
        try:
            eps.add_to(weights)
            del eps
            forget_casts()
            with torch.enable_grad():
                yield theta
        finally:
            torch._foreach_copy_(weights, theta)
            forget_casts()


def _clones(tensors: list[Tensor]) -> list[Tensor]:
    if hasattr(torch, "_foreach_clone"):  # not in every supported torch
        return list(torch._foreach_clone(tensors))
    return [t.clone() for t in tensors]


def forget_casts() -> None:
    """Drop autocast's cached low-precision copies of the weights.

    In an ``autocast`` block that spans the whole step they would still be those of the weights before the move.
    """
    torch.clear_autocast_cache()


def moved_share(theta: Sequence[Tensor], weights: Sequence[Tensor], eps: Sequence[Tensor]) -> float:
    """Return the share of the weights with eps != 0 that really moved: rounding swallows steps below half a unit."""
    with torch.no_grad():
        moved = sum(int(torch.count_nonzero(w != t)) for t, w in zip(theta, weights, strict=True))
        meant = sum(int(torch.count_nonzero(e)) for e in eps)
    return moved / meant if meant else 1.0
