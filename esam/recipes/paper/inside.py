"""What do the items that look inside a training run share? One observed run of ESAM for each task, the first seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from esam.reproduce.item import Needs, Row
from esam.reproduce.scale import Scale, Task
from esam.reproduce.store import Found

from .common import rows_of

SET_COLOURS = {"B+": "#c4273a", "B-": "#0d8f58", "B": "#66707d", "B_rand": "#66707d"}
"""One colour for a set of samples in every figure."""


def observed_needs(scale: Scale, tasks: Sequence[Task]) -> Needs:
    """Return the runs of ESAM that are looked into, with the forward passes that looking takes."""
    rows: list[Row] = []
    passes = []
    for task in tasks:
        one = dataclasses.replace(scale.cifar[task], seeds=scale.cifar[task].seeds[:1])
        rows += rows_of(task, one, ("esam",))
        looks = len(scale.look.epochs(one.config.epochs))
        passes.append((one.config, float(looks * _passes_of_a_look(scale))))
    look = scale.look
    sizes = {"looks": f"every {look.every} epochs, {look.batches} batches of {look.batch_size} training images"}
    return Needs(observed=tuple(rows), look=look, passes=tuple(passes), sizes=sizes)


def _passes_of_a_look(scale: Scale) -> int:
    look = scale.look
    each = 6 + 9 + len(look.ts) + 4 + 2 * len(look.betas) * look.draws
    return each * look.batches * look.batch_size


def batches_seen(found: Found, row: Row, kind: str) -> Iterator[tuple[int, Any]]:
    """Yield (epoch, what was seen in one batch)."""
    for seen in found.observations(row):
        for epoch, values in seen.items():
            for one in values[kind]:
                yield epoch, one


def with_gaps(values: Sequence[float | None]) -> list[float]:
    """Return numbers to draw; a curve is interrupted where there is none."""
    return [float("nan") if value is None else value for value in values]
