"""How does a user's own DataLoader give every method the same batches?"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from .data.draws import generator_for
from .inputs import Batch, as_pair


class SeededLoader:
    """A DataLoader whose epoch n depends on (seed, n) alone: order, samplers, and what its Dataset draws.

    The loader draws from random streams of its own, so that a method which draws more than another in a step sees the
    same batches, and a resumed run those that it would have seen.
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int = 0) -> None:
        self.loader, self._seed = loader, seed

    def __len__(self) -> int:
        """Give the number of batches in an epoch; a stream without a length raises TypeError, as the loader does."""
        return len(self.loader)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Give the batches of epoch ``number``."""
        streams = _Streams(generator_for("loader", self._seed, number).initial_seed() % 2**32)
        for owner in (self.loader, getattr(self.loader, "sampler", None)):
            if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
                generator.manual_seed(streams.seed)
        with streams:
            batches = iter(self.loader)
        while True:
            with streams:
                batch = next(batches, None)
            if batch is None:
                return
            yield as_pair(batch)

    def __iter__(self) -> Iterator[Batch]:
        """Give the batches in the order of an epoch that no training has."""
        return self.epoch(0)


class _Streams:
    """Random streams of torch, Python and NumPy that are in the place of the global ones inside the block."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        outside = _states()
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        self._inside = _states()
        _set_states(outside)

    def __enter__(self) -> None:
        self._outside = _states()
        _set_states(self._inside)

    def __exit__(self, *error: object) -> None:
        self._inside = _states()
        _set_states(self._outside)


def _states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()


def _set_states(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])
