"""How far is the epoch that is under way?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .data.share import Part, Share
from .inputs import Batch
from .loop import Epochs

T = TypeVar("T")
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
        return self._told(number, self._batches.epoch(number))

    def parts(self, number: int, share: Share) -> Iterator[Part]:
        """Give a rank's parts of the batches of epoch ``number``."""
        batches: Any = self._batches
        whole = not hasattr(batches, "parts")
        return self._told(number, share.parts(batches.epoch(number)) if whole else batches.parts(number, share))

    def _told(self, number: int, taken: Iterator[T]) -> Iterator[T]:
        for position, one in enumerate(taken):
            self._tell(number, position, len(self))
            yield one
