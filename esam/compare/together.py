"""How do the runs get done where several ranks train each of them? In this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from esam.train.ranks import Ranks

from .plan import PlannedRun

Order = tuple[str, str] | None
"""A worker's module and the folder of a run; None: there is nothing more to do."""


def lead(runs: Sequence[PlannedRun], ranks: Ranks, watch: Callable[[], None]) -> None:
    """Do the runs, on rank 0, with the others following."""
    for run in runs:
        watch()
        run.prepare()
        order: Order = (run.worker, str(run.folder.absolute()))
        _carry_out(ranks.from_first(order))
    watch()


def follow(ranks: Ranks) -> None:
    """Do what rank 0 does until it says that nothing is left; the folders must be on a disk that all ranks see."""
    nothing: Order = None
    while (order := ranks.from_first(nothing)) is not None:
        _carry_out(order)


def dismiss(ranks: Ranks) -> None:
    """Tell the others that nothing is left."""
    nothing: Order = None
    ranks.from_first(nothing)


def _carry_out(order: Order) -> None:
    assert order is not None, "rank 0 gives orders"
    worker, folder = order
    import_module(worker).main(Path(folder))
