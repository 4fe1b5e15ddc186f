"""How are gradients of different samples and points put together? Keyed by the tensors' places."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from .ascent import usable
from .parallel import Alone, Gradients


def added(totals: Gradients, gradients: Gradients, factor: float) -> Gradients:
    """Return totals + factor * gradients. Nothing in place: gradients may share memory with one another."""
    if factor != 1 and gradients:
        gradients = dict(zip(gradients, torch._foreach_mul(list(gradients.values()), factor), strict=True))
    if not totals:
        return gradients
    return {**totals, **{n: totals[n] + g if n in totals else g for n, g in gradients.items()}}


@dataclass
class MeanGradient:
    """The gradient of a mean over samples that come piece by piece; how many there are is known only at the end."""

    samples: int = 0
    _total: Gradients = field(default_factory=dict)
    _first: int = 0

    def add(self, gradients: Gradients, samples: int) -> None:
        """Add the gradient of the mean over some samples."""
        self._first = self._first or samples
        self._total = added(self._total, gradients, samples / self._first)
        self.samples += samples

    def take(self, scale: float) -> Gradients:
        """Return the gradient of the mean over all of them, unscaled, and let go of it: the second pass needs room."""
        total, self._total = self._total, {}
        return added({}, total, self._first / self.samples / scale) if self.samples else {}


def orthogonal_part(gradient: Gradients, direction: Gradients, parallel: Alone) -> Gradients | None:
    """Return the part of the whole gradient orthogonal to ``direction``; nothing where all of it is rounding.

    None where either is zero or not finite: no part can be told.
    """
    length, own = parallel.norm(list(direction.values())), parallel.norm(list(gradient.values()))
    if not usable(length) or not usable(own):
        return None
    common = [n for n in gradient if n in direction]
    along = parallel.dot([gradient[n] for n in common], [direction[n] for n in common]) / length**2
    part = {n: g - along * direction[n] if n in direction else g.clone() for n, g in gradient.items()}
    # both gradients carry the rounding of sums over samples and weights, some tens of units in the last place
    noise = 64 * max((torch.finfo(g.dtype).eps for g in gradient.values()), default=0.0)
    return part if parallel.norm(list(part.values())) > noise * own else {}


def add_to_length(gradient: Gradients, part: Gradients, share: float, parallel: Alone) -> None:
    """Add ``part``, scaled to ``share`` times the gradient's own length, to the gradient in place."""
    common = [n for n in gradient if n in part]
    length, own = parallel.norm(list(gradient.values())), parallel.norm([part[n] for n in common])
    if usable(length) and usable(own) and math.isfinite(share * length / own):
        torch._foreach_add_([gradient[n] for n in common], [part[n] for n in common], alpha=share * length / own)
