"""How do the weights move to theta + eps, and how do they come back?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from .ascent import Eps
from .checks import GuidanceWarning, warn_caller

_LOW_PRECISION = (torch.float16, torch.bfloat16)


@contextmanager
def perturbed(
    weights: Sequence[Tensor], eps: Eps, *, on_move: Callable[[], None] = torch.clear_autocast_cache
) -> Iterator[list[Tensor]]:
    """Hold the weights at theta + eps; yield theta; leaving restores theta bit for bit and in place, also on an error.

    The tensors and their storage stay the caller's: nothing is swapped, so views, compiled graphs and other optimizers
    keep seeing the same weights. ``on_move`` is called whenever the weights have moved: by default, autocast's cached
    low-precision copies of them are dropped.

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
            on_move()
            with torch.enable_grad():
                yield theta
        finally:
            torch._foreach_copy_(weights, theta)
            on_move()


def _clones(tensors: list[Tensor]) -> list[Tensor]:
    if hasattr(torch, "_foreach_clone"):  # not in every supported torch
        return list(torch._foreach_clone(tensors))
    return [t.clone() for t in tensors]


def warn_of_rounding(theta: Sequence[Tensor], weights: Sequence[Tensor], eps: Eps) -> None:
    """Warn where low precision swallows most of a perturbation: it rounds away steps below half a unit."""
    low = [i for i, w in enumerate(weights) if w.dtype in _LOW_PRECISION]
    if not low:
        return
    moved = sum(int(torch.count_nonzero(weights[i] != theta[i])) for i in low)
    meant = sum(int(torch.count_nonzero(eps.factors[i] * eps.directions[i])) for i in low)
    if meant and moved < 0.5 * meant:
        warn_caller(
            f"the perturbation moves only {moved / meant:.0%} of the weights: {weights[low[0]].dtype} rounds it away, "
            "so it does little here; keep the weights in float32 and compute in low precision with torch.autocast",
            GuidanceWarning,
        )
