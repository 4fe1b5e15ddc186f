"""How far is the epoch that is under way?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .inputs import Batch
from .loop import Epochs

Tell = Callable[[int, int, int], None]
"""(epoch from 1, batch from 0, batches of an epoch); called before each batch."""


class Counted:
    """Batches that tell which of them is taken; in all else those that it is given."""

    def __init__(self, batches: Epochs, tell: Tell) -> None:
        self._batches, self._tell = batches, tell

    def __len__(self) -> int:
        """Give the number of batches in an epoch."""
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Give the batches of epoch ``number``."""
        for position, batch in enumerate(self._batches.epoch(number)):
            self._tell(number, position, len(self))
            yield batch
