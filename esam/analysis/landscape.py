"""What does the loss look like on a line or a plane through theta?"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esam.files import write_atomically

from .objective import Objective, Parameters, moved, repeats, same_answer

Group = tuple[Objective, Sequence[Parameters]]
"""An objective and the directions of the axes; a landscape may be averaged over several."""
OnProgress = Callable[[int, int], None]
"""(points done, points in all)."""

SAVE_SECONDS = 2.0


@dataclass(frozen=True)
class Landscape:
    """The loss at ``theta + sum_k axes[k][i_k] * direction_k``."""

    axes: tuple[tuple[float, ...], ...]
    """The coefficients along each direction: one axis for a line, two for a plane."""
    losses: Tensor
    """One landscape for each group: shape (groups, len(axes[0]), ...), float64."""

    @property
    def mean(self) -> Tensor:
        """The mean over the groups, what is usually drawn."""
        return self.losses.mean(0)

    def as_json(self) -> dict[str, Any]:
        """Return axes and groups as plain JSON values; what is not finite as null."""
        groups = [[value if math.isfinite(value) else None for value in row] for row in self.losses.flatten(1).tolist()]
        return {"axes": [list(axis) for axis in self.axes], "groups": groups}


def even_axis(reach: float, n: int) -> list[float]:
    """Return n coefficients from -reach to reach; an odd n has theta itself in the middle.

    >>> even_axis(1.0, 5)
    [-1.0, -0.5, 0.0, 0.5, 1.0]
    """
    if n < 2 or not reach > 0:
        raise ValueError(f"an axis needs 2 points or more and a reach > 0, got {n!r} and {reach!r}")
    return [reach * (2 * i / (n - 1) - 1) for i in range(n)]


def landscape(
    groups: Sequence[Group],
    parameters: Parameters,
    axes: Sequence[Sequence[float]],
    *,
    path: str | Path | None = None,
    progress: OnProgress | None = None,
) -> Landscape:
    """Return the loss on the grid of ``axes``, a line for one axis and a plane for two, once for each group.

    Give several groups to average: the paper draws ten pairs of random directions. ``path`` names a JSON file that
    keeps what is done: after an interruption, the same call resumes from it.
    """
    axes = [[float(c) for c in axis] for axis in axes]
    _check(groups, parameters, axes)
    points = list(itertools.product(*axes))
    file = None if path is None else Path(path)
    fingerprint = _digest(groups, parameters, axes)
    at_theta = [repeats(objective, parameters) for objective, _ in groups]
    losses = _read(file, fingerprint, at_theta) if file is not None and file.exists() else [[] for _ in groups]

    def save() -> None:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            kept = {"fingerprint": fingerprint, "at theta": at_theta, "losses": losses}
            write_atomically(file, json.dumps(kept).encode() + b"\n")

    saved = time.monotonic()
    try:
        for number, (objective, directions) in enumerate(groups):
            for point in points[len(losses[number]) :]:
                losses[number].append(_loss_at(objective, parameters, directions, point))
                if time.monotonic() - saved > SAVE_SECONDS:
                    save()
                    saved = time.monotonic()
                if progress is not None:
                    progress(sum(map(len, losses)), len(groups) * len(points))
    finally:
        save()
    grids = torch.tensor(losses, dtype=torch.float64).reshape(len(groups), *map(len, axes))
    return Landscape(tuple(map(tuple, axes)), grids)


@torch.no_grad()
def _loss_at(
    objective: Objective, theta: Parameters, directions: Sequence[Parameters], coefficients: Sequence[float]
) -> float:
    for direction, c in zip(directions, coefficients, strict=True):
        theta = moved(theta, direction, c)
    return float(objective(theta))


def _read(file: Path, fingerprint: str, at_theta: list[float]) -> list[list[float]]:
    """Return the losses that an interrupted call has left; refuse a file of another landscape."""
    try:
        read = json.loads(file.read_bytes())
        losses = [[float(value) for value in row] for row in read["losses"]]
        same = read["fingerprint"] == fingerprint and all(map(same_answer, read["at theta"], at_theta))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} holds no landscape ({error}); delete it, or choose another file") from error
    if not same:
        raise ValueError(
            f"{file} holds another landscape: its weights, directions, axes or data differ; "
            "delete it, or choose another file"
        )
    return losses


def _check(groups: Sequence[Group], parameters: Parameters, axes: Sequence[Sequence[float]]) -> None:
    if not groups:
        raise ValueError("there is nothing to evaluate: give at least one group (objective, directions)")
    if not axes or not all(axes):
        raise ValueError("an axis is empty: give the coefficients along each direction, such as even_axis(1.0, 51)")
    for _, directions in groups:
        if len(directions) != len(axes):
            raise ValueError(f"{len(axes)} axes need {len(axes)} directions, got {len(directions)}")
        for name, d in ((name, d) for direction in directions for name, d in direction.items()):
            if name not in parameters or d.shape != parameters[name].shape:
                raise ValueError(f"the direction's {name!r} does not fit the parameters; use their names and shapes")


def _digest(groups: Sequence[Group], parameters: Parameters, axes: Sequence[Sequence[float]]) -> str:
    digest = hashlib.sha256(json.dumps(axes).encode())
    for tensors in (parameters, *(direction for _, directions in groups for direction in directions)):
        for name, tensor in tensors.items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
