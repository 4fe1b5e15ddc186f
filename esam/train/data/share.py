"""Which rows of a batch are this rank's?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from esam.train.inputs import Batch, Inputs, as_pair, rows_of


@dataclass(frozen=True)
class Rows:
    """Neighbouring rows of a batch."""

    start: int
    stop: int
    whole: int
    """How many rows the batch has, on all ranks together."""
    counted: int
    """How many of these rows count: all, or none where they are borrowed."""

    @property
    def slice(self) -> slice:
        """The rows as an index."""
        return slice(self.start, self.stop)


class Part(NamedTuple):
    """What a rank sees of a batch."""

    x: Inputs
    y: Tensor
    counted: int
    """How many of the samples count: all, or none where they are borrowed."""
    whole: int
    """How many samples the batch has, on all ranks together."""


@dataclass(frozen=True)
class Share:
    """The place of a rank among all: every batch is cut into as many runs of neighbours, alike to a sample in size."""

    rank: int = 0
    count: int = 1

    def rows(self, whole: int) -> Rows:
        """Return this rank's rows of a batch; where there are fewer rows than ranks, perhaps one that does not count.

        A rank without samples would hold up the others, which wait for its gradient.

        >>> [Share(rank, 3).rows(2) for rank in range(2)]
        [Rows(start=0, stop=1, whole=2, counted=0), Rows(start=0, stop=1, whole=2, counted=1)]
        """
        start, stop = (place * whole // self.count for place in (self.rank, self.rank + 1))
        if start < stop:
            return Rows(start, stop, whole, stop - start)
        borrowed = min(start, whole - 1)
        return Rows(borrowed, borrowed + 1, whole, 0)

    def weight(self, part: Part) -> float:
        """Return the factor on a part's mean loss that makes the mean over the ranks that of the whole batch."""
        return part.counted * self.count / part.whole

    def parts(self, batches: Iterable[Batch]) -> Iterator[Part]:
        """Cut whole batches, which every rank must see alike."""
        for x, y in map(as_pair, batches):
            if self.count == 1:
                yield Part(x, y, len(y), len(y))
                continue
            rows = self.rows(len(y))
            yield Part(rows_of(x, rows.slice), y[rows.slice], rows.counted, rows.whole)
