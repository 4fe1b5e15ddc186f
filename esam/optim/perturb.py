"""How do the weights move to theta + eps, and how do they come back?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def perturbed(weights: Sequence[Tensor], eps: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Hold the weights at theta + eps; yield theta; leaving restores theta bit for bit and in place, also on an error.

    Storage and version of the tensors stay the caller's: nothing is swapped, so views, compiled graphs and other
    optimizers keep seeing the same weights.
    """
    weights = list(weights)
    with torch.no_grad():
        # copy, not subtract: adding and removing eps loses bits
        theta = [w.clone() for w in weights]
    try:
        if weights:
            with torch.no_grad():
                torch._foreach_add_(weights, list(eps))
            forget_casts()
        yield theta
    finally:
        if weights:
            with torch.no_grad():
                torch._foreach_copy_(weights, theta)
            forget_casts()


def forget_casts() -> None:
    """Drop autocast's cached low-precision copies of the weights.

    Inside an ``autocast`` block that spans the whole step, they would still be those of the weights before the move.
    """
    torch.clear_autocast_cache()


def moved_share(theta: Sequence[Tensor], weights: Sequence[Tensor], eps: Sequence[Tensor]) -> float:
    """Return the share of the weights with eps != 0 that really moved: rounding swallows steps below half a unit."""
    with torch.no_grad():
        moved = sum(int(torch.count_nonzero(w != t)) for t, w in zip(theta, weights, strict=True))
        meant = sum(int(torch.count_nonzero(e)) for e in eps)
    return moved / meant if meant else 1.0
