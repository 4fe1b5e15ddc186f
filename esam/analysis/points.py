"""How is the loss found at many points theta + sum_k c_k d_k, fast?

Which way is fastest depends on the model and the machine, so the ways are timed on the first points, and a way whose
values differ from the plain loop's by more than rounding is out.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .objective import ModelObjective, Objective, Parameters
from .rewriting import Folded, KnownInputs, point_at

Evaluate = Callable[[Tensor], list[float]]
"""Rows of coefficients, one for each direction -> the loss at each point."""

PIECES = (64, 128, 32)
"""Samples a batch that are tried: the activations of so many stay in a processor's cache."""
VMAP = 4
"""Points at once under vmap."""
AGREEMENT = 1e-4
"""Relative; rounding in float32 stays below it, a way that is wrong does not."""
TRIAL_SHARE = 0.05
"""What the trials may take, of the plain loop's time for all points."""
SHORT = 0.05
"""Seconds a point; below, the calls cost enough for vmap to save some, and one timing is not enough."""
GAIN = 0.95
"""A way must take less than this share of the plain loop's time, or the plain loop stays."""


@dataclass(frozen=True)
class Way:
    """One way to evaluate points: samples a batch, points at once, and which work is left out."""

    pieces: int | None = None
    """Samples a batch; None: the batches as they were given."""
    points: int = 1
    """Points at once, by vmap."""
    known: bool = False
    """Whether layers that read the data are worked out once for theta and once for each direction."""
    folded: bool = False
    """Whether BatchNorm is folded into the layer before it, and ReLU works in place."""

    def __str__(self) -> str:
        """Return the name that ``Way.named`` reads."""
        flags = f"known={int(self.known)} folded={int(self.folded)}"
        return f"pieces={self.pieces or 0} points={self.points} {flags}"

    @classmethod
    def named(cls, name: str) -> Way:
        """Return the way of that name."""
        try:
            pieces, points, known, folded = (int(word.split("=")[1]) for word in name.split())
            return cls(pieces or None, points, bool(known), bool(folded))
        except (ValueError, IndexError, AttributeError) as error:
            raise ValueError(f"{name!r} names no way to evaluate points ({error})") from error


LOOP = Way()
"""Set the weights, run the model, next point."""


def evaluator(objective: Objective, parameters: Parameters, directions: Sequence[Parameters], way: Way) -> Evaluate:
    """Return the function that finds the losses in that way."""
    theta = {name: p.detach() for name, p in parameters.items()}
    # most directions leave biases and norms where they are: nothing to add there
    moving = [name for name in theta if any(name in d and bool(d[name].any()) for d in directions)]
    if isinstance(objective, ModelObjective) and way.pieces is not None:
        objective = objective.pieces(way.pieces)
    if way.points > 1:
        return _vectorised(objective, theta, moving, directions)
    if way.known or way.folded:
        assert isinstance(objective, ModelObjective), "only its data and its model are known"
        rewriting = KnownInputs if way.known else Folded
        return rewriting(objective, theta, moving, directions).losses

    @torch.no_grad()
    def loop(coefficients: Tensor) -> list[float]:
        return [float(objective(point_at(theta, moving, directions, row))) for row in coefficients.tolist()]

    return loop


def fastest(
    objective: Objective, parameters: Parameters, directions: Sequence[Parameters], coefficients: Tensor
) -> Way:
    """Time the ways on the last of these points, the farthest out, and return the fastest.

    Trials stop when they have taken a small share of what the plain loop would take for all points.
    """
    seconds: dict[Way, float] = {}
    right = math.nan

    def trial(way: Way) -> None:
        try:
            evaluate = evaluator(objective, parameters, directions, way)
            taken, found = _timed(evaluate, coefficients[-way.points :])
        except (RuntimeError, ValueError):  # an operation without a batching rule, inputs that cannot be split
            return
        if way == LOOP or math.isclose(found[-1], right, rel_tol=AGREEMENT):
            seconds[way] = taken / len(found)

    loop = evaluator(objective, parameters, directions, LOOP)
    (right,) = loop(coefficients[-1:])
    if not math.isfinite(right):  # nothing to compare with
        return LOOP
    trial(LOOP)
    begin = _now()
    budget = TRIAL_SHARE * len(coefficients) * seconds[LOOP]
    for way in _ways(objective, seconds):
        if _now() - begin > budget:
            break
        trial(way)
    best = min(seconds, key=lambda way: seconds[way])
    return best if seconds[best] < GAIN * seconds[LOOP] else LOOP


def _ways(objective: Objective, seconds: dict[Way, float]) -> Iterator[Way]:
    """Give the other ways in the order of their promise; ``seconds`` grows in between."""
    if isinstance(objective, ModelObjective):
        yield Way(known=True)
        yield Way(folded=True)
        largest = max(len(y) for _, y in objective.batches)
        yield from (Way(pieces=size) for size in PIECES if size < largest)
        best = min((way for way in seconds if not way.known and not way.folded), key=lambda way: seconds[way])
        if best.pieces is not None:
            yield Way(best.pieces, folded=True)
            yield Way(best.pieces, known=True)
    if seconds[LOOP] < SHORT:
        yield Way(points=VMAP)


def _timed(evaluate: Evaluate, points: Tensor) -> tuple[float, list[float]]:
    """Return the time and the losses after a first run, the shorter of two times where they are short.

    The losses are numbers, so whatever runs on a device is done by then.
    """
    found, times = evaluate(points), [math.inf]
    while len(times) < 3 and (times[-1] == math.inf or times[-1] < SHORT):
        start = _now()
        found = evaluate(points)
        times.append(_now() - start)
    return min(times), found


def _now() -> float:
    # processor time is steadier where others use the machine, but says nothing of threads or devices
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return time.process_time() if alone else time.perf_counter()


def _vectorised(
    objective: Objective, theta: Parameters, moving: Sequence[str], directions: Sequence[Parameters]
) -> Evaluate:
    fixed = {name: p for name, p in theta.items() if name not in moving}

    @torch.no_grad()
    def losses(coefficients: Tensor) -> list[float]:
        points = [point_at(theta, moving, directions, row) for row in coefficients.tolist()]
        stacks = {name: torch.stack([point[name] for point in points]) for name in moving}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # the trial sees it
            found: Tensor = torch.func.vmap(lambda some: objective({**fixed, **some}))(stacks)
        values: list[float] = found.tolist()
        return values

    return losses
