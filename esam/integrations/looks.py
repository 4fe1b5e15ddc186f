"""Which call of a closure is the first look at its samples? What a trainer logs or counts, it does then."""

from __future__ import annotations

import torch
from torch import Tensor


class FirstLook:
    """Remembers which samples of a micro-batch have run with a graph."""

    def __init__(self) -> None:
        self._whole = False
        self._seen: set[int] = set()

    def at(self, keep: slice | Tensor) -> bool:
        """Tell whether none of these samples has run yet, and remember them.

        >>> look = FirstLook()
        >>> [look.at(torch.tensor(keep)) for keep in ([0, 1], [2, 3], [1, 2])]
        [True, True, False]
        """
        if not torch.is_grad_enabled():  # a ranking, or a count of samples
            return False
        samples = set() if isinstance(keep, slice) else set(keep.tolist())
        first = not self._whole and (self._seen.isdisjoint(samples) if samples else not self._seen)
        self._whole = self._whole or not samples
        self._seen |= samples
        return first
