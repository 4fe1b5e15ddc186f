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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from .objective import ModelObjective, Objective, Parameters

Evaluate = Callable[[Tensor], list[float]]
"""Rows of coefficients, one for each direction -> the loss at each point."""

PIECES = (64, 128, 32)
"""Samples a batch that are tried: the activations of so many stay in a processor's cache."""
VMAP = 4
"""Points at once under vmap."""
KNOWN_BYTES = 512 * 2**20
"""What the remembered outputs of the first layer may take."""
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
    """One way to evaluate points: samples a batch, points at once, and whether the first layer is remembered."""

    pieces: int | None = None
    """Samples a batch; None: the batches as they were given."""
    points: int = 1
    """Points at once, by vmap."""
    known: bool = False
    """Whether layers that read the data are worked out once for theta and once for each direction."""

    def __str__(self) -> str:
        """Return the name that ``Way.named`` reads."""
        return f"pieces={self.pieces or 0} points={self.points} known={int(self.known)}"

    @classmethod
    def named(cls, name: str) -> Way:
        """Return the way of that name."""
        try:
            pieces, points, known = (int(word.split("=")[1]) for word in name.split())
            return cls(pieces or None, points, bool(known))
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
    if way.known:
        assert isinstance(objective, ModelObjective), "only its data are known"
        return _KnownInputs(objective, theta, moving, directions).losses

    @torch.no_grad()
    def loop(coefficients: Tensor) -> list[float]:
        return [float(objective(_point(theta, moving, directions, row))) for row in coefficients.tolist()]

    return loop


def fastest(
    objective: Objective, parameters: Parameters, directions: Sequence[Parameters], coefficients: Tensor
) -> Way:
    """Time the ways on the last of these points, the farthest out, and return the fastest.

    Trials stop when they have taken a small share of what the plain loop would take for all points.
    """
    begin = time.perf_counter()
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
    budget = TRIAL_SHARE * len(coefficients) * seconds[LOOP]
    for way in _ways(objective, seconds):
        if time.perf_counter() - begin > budget:
            break
        trial(way)
    best = min(seconds, key=lambda way: seconds[way])
    return best if seconds[best] < GAIN * seconds[LOOP] else LOOP


def _ways(objective: Objective, seconds: dict[Way, float]) -> Iterator[Way]:
    """Give the other ways in the order of their promise; ``seconds`` grows in between."""
    if isinstance(objective, ModelObjective):
        yield Way(known=True)
        largest = max(len(y) for _, y in objective.batches)
        yield from (Way(pieces=size) for size in PIECES if size < largest)
        best = min((way for way in seconds if not way.known), key=lambda way: seconds[way])
        if best.pieces is not None:
            yield Way(best.pieces, known=True)
    if seconds[LOOP] < SHORT:
        yield Way(points=VMAP)


def _timed(evaluate: Evaluate, points: Tensor) -> tuple[float, list[float]]:
    """Return the time and the losses after a first run, the shorter of two times where they are short.

    The losses are numbers, so whatever runs on a device is done by then.
    """
    found, times = evaluate(points), [math.inf]
    while len(times) < 3 and (times[-1] == math.inf or times[-1] < SHORT):
        start = time.perf_counter()
        found = evaluate(points)
        times.append(time.perf_counter() - start)
    return min(times), found


def _point(
    theta: Parameters, names: Sequence[str], directions: Sequence[Parameters], row: Sequence[float]
) -> dict[str, Tensor]:
    values = dict(theta)
    for direction, c in zip(directions, row, strict=True):
        for name in names:
            if name in direction:
                fresh = values[name] is theta[name]
                values[name] = (torch.add if fresh else Tensor.add_)(values[name], direction[name], alpha=c)
    return values


def _vectorised(
    objective: Objective, theta: Parameters, moving: Sequence[str], directions: Sequence[Parameters]
) -> Evaluate:
    fixed = {name: p for name, p in theta.items() if name not in moving}

    @torch.no_grad()
    def losses(coefficients: Tensor) -> list[float]:
        points = [_point(theta, moving, directions, row) for row in coefficients.tolist()]
        stacks = {name: torch.stack([point[name] for point in points]) for name in moving}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # the trial sees it
            found: Tensor = torch.func.vmap(lambda some: objective({**fixed, **some}))(stacks)
        values: list[float] = found.tolist()
        return values

    return losses


class _KnownInputs(TorchFunctionMode):
    """Find the losses while layers that read the data are answered from outputs worked out once.

    x (W + a D + b E)^T = x W^T + a x D^T + b x E^T, and the same for convolutions: three products serve every point.
    A layer reads the data where its input shares the batch's memory: the batch itself, or a view of it.
    """

    LINEAR = (F.linear, F.conv1d, F.conv2d, F.conv3d)

    def __init__(
        self,
        objective: ModelObjective,
        theta: Parameters,
        moving: Sequence[str],
        directions: Sequence[Parameters],
    ) -> None:
        super().__init__()
        self.theta, self.moving, self.directions = theta, list(moving), directions
        self.parts = objective.parts()
        self.shares = [part.count / objective.count for part in self.parts]
        self.outputs: dict[tuple[int, int], list[Tensor]] = {}
        self.bytes = 0
        # learnt from the first point: which weights do remembered layers read, and which does anything else
        self.read_here: set[str] = set()
        self.elsewhere: set[str] = set()
        self.learnt = False

    @torch.no_grad()
    def losses(self, coefficients: Tensor) -> list[float]:
        return [self._loss(row) for row in coefficients.tolist()]

    def _loss(self, row: Sequence[float]) -> float:
        self.row = row
        # weights that only remembered layers read need no adding up
        values = _point(self.theta, [n for n in self.moving if n not in self._spared()], self.directions, row)
        self.names = {id(value): name for name, value in values.items()}
        total = 0.0
        for number, (objective, share) in enumerate(zip(self.parts, self.shares, strict=True)):
            x = objective.batches[0][0]
            self.part, self.call = number, 0
            self.data = x.untyped_storage().data_ptr() if isinstance(x, Tensor) else None
            with self:
                total += share * float(objective(values))
        self.learnt = True
        return total

    def _spared(self) -> set[str]:
        return self.read_here - self.elsewhere if self.learnt else set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.LINEAR and not kwargs and self._reads_data(args):
            found = self._known(func, args)
            if found is not None:
                return found
        if not self.learnt:
            leaves = tree_leaves((args, kwargs))
            self.elsewhere.update(self.names[id(leaf)] for leaf in leaves if id(leaf) in self.names)
        return func(*args, **(kwargs or {}))

    def _reads_data(self, args: Any) -> bool:
        x, weights = args[0], [w for w in args[1:3] if isinstance(w, Tensor)]
        return (
            self.data is not None
            and x.untyped_storage().data_ptr() == self.data
            and all(id(w) in self.names for w in weights)
        )

    def _known(self, func: Any, args: Any) -> Tensor | None:
        x, weights, rest = args[0], args[1:3], args[3:]
        names = [None if w is None else self.names[id(w)] for w in weights]
        key = (self.part, self.call)
        self.call += 1
        if key not in self.outputs:
            outputs = []
            for source in (self.theta, *self.directions):
                own = [None if n is None else source.get(n, torch.zeros_like(self.theta[n])) for n in names]
                outputs.append(func(x, *own, *rest))
            self.bytes += sum(o.nbytes for o in outputs)
            self.outputs[key] = outputs
        if self.bytes > KNOWN_BYTES:
            raise RuntimeError("the outputs of the first layer take too much memory")
        self.read_here.update(n for n in names if n is not None)
        base, *slopes = self.outputs[key]
        found = base.clone()
        for slope, c in zip(slopes, self.row, strict=True):
            found.add_(slope, alpha=c)
        return found
