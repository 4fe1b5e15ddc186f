"""Which work does a model repeat at every point, or could leave out, and how is it left out without touching the model?

A torch function mode sees each call that the model makes, learns from the first pass, and answers some calls otherwise.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from .objective import ModelObjective, Parameters

KNOWN_BYTES = 512 * 2**20
"""What the remembered outputs of the first layer may take."""
LINEAR = (F.linear, F.conv1d, F.conv2d, F.conv3d)
RELU = (F.relu, torch.relu, Tensor.relu)
FRESH = (*LINEAR, F.batch_norm, torch.add, Tensor.add)
"""Calls whose result shares no memory with anything."""


def point_at(
    theta: Parameters, names: Sequence[str], directions: Sequence[Parameters], row: Sequence[float]
) -> dict[str, Tensor]:
    """Return theta + sum_k row[k] * directions[k] for these names, and theta itself for the others."""
    values = dict(theta)
    for direction, c in zip(directions, row, strict=True):
        for name in names:
            if name in direction:
                fresh = values[name] is theta[name]
                values[name] = (torch.add if fresh else Tensor.add_)(values[name], direction[name], alpha=c)
    return values


class Rewriting(TorchFunctionMode):
    """Finds losses batch by batch, while subclasses answer some of the model's calls."""

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
        self.learnt = False
        self.row: Sequence[float] = ()
        self.values: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        """The name of each weight by its id."""
        self.part = self.call = 0
        """Which batch, and which call within it."""

    @torch.no_grad()
    def losses(self, coefficients: Tensor) -> list[float]:
        """Return the loss at each point."""
        return [self._loss(row) for row in coefficients.tolist()]

    def _loss(self, row: Sequence[float]) -> float:
        self.row, self.values = row, point_at(self.theta, self.added_up(), self.directions, row)
        self.names = {id(value): name for name, value in self.values.items()}
        total = 0.0
        for number, (objective, share) in enumerate(zip(self.parts, self.shares, strict=True)):
            self.part, self.call = number, 0
            with self:
                total += share * float(objective(self.values))
            self.learn_from_batch()
        self.learnt = True
        return total

    def added_up(self) -> Sequence[str]:
        """Return the weights that the model needs at the point itself."""
        return self.moving

    def learn_from_batch(self) -> None:
        """Draw conclusions after a batch."""


class KnownInputs(Rewriting):
    """Layers that read the data are answered from outputs worked out once.

    x (W + a D + b E)^T = x W^T + a x D^T + b x E^T, and the same for convolutions: three products serve every point.
    A layer reads the data where its input shares the batch's memory: the batch itself, or a view of it.
    """

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.outputs: dict[tuple[int, int], list[Tensor]] = {}
        self.bytes = 0
        # learnt from the first point: which weights do remembered layers read, and which does anything else
        self.read_here: set[str] = set()
        self.elsewhere: set[str] = set()

    def added_up(self) -> Sequence[str]:
        """Return the weights that anything else than a remembered layer reads."""
        return [n for n in self.moving if not self.learnt or n in self.elsewhere or n not in self.read_here]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a layer that reads the data."""
        if func in LINEAR and not kwargs and self._reads_data(args):
            return self._known(func, args)
        if not self.learnt:
            leaves = tree_leaves((args, kwargs))
            self.elsewhere.update(self.names[id(leaf)] for leaf in leaves if id(leaf) in self.names)
        return func(*args, **(kwargs or {}))

    def _reads_data(self, args: Any) -> bool:
        x, data = args[0], self.parts[self.part].batches[0][0]
        return (
            isinstance(data, Tensor)
            and x.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()
            and all(id(w) in self.names for w in args[1:3] if w is not None)
        )

    def _known(self, func: Any, args: Any) -> Tensor:
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


class Norm(NamedTuple):
    """An eval-mode BatchNorm: y = (x - mean) / sqrt(var + eps) * weight + bias; the last two by their names."""

    call: int
    mean: Tensor
    var: Tensor
    eps: float
    weight: str | None
    bias: str | None


class Folded(Rewriting):
    """BatchNorm is folded into the weights of the layer before it, and ReLU works in place: fewer passes over memory.

    Only where nothing else reads the value in between, which the first batch shows.
    """

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.functions: list[Any] = []
        self.norms: dict[int, Norm] = {}
        """By the call of the layer that each is folded into."""
        self.left_out: set[int] = set()
        self.in_place: set[int] = set()
        self.scaled: dict[int, tuple[Tensor, Tensor]] = {}
        # while learning: who made a tensor, how many calls read it, and the tensors, lest an id is used again
        self.maker: dict[int, int] = {}
        self.readers: Counter[int] = Counter()
        self.alive: list[Any] = []
        self.seen: list[tuple[int, int, Norm | None]] = []
        """(the tensor read, the call, its BatchNorm; None for a ReLU)."""

    def _loss(self, row: Sequence[float]) -> float:
        self.scaled = {}
        return super()._loss(row)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer the layers before a BatchNorm, the BatchNorms and the ReLUs."""
        kwargs = kwargs or {}
        number, self.call = self.call, self.call + 1
        if not self.learnt:
            return self._learn(number, func, args, kwargs)
        if number >= len(self.functions) or self.functions[number] != func:
            raise RuntimeError("the model does not make the same calls for every batch")
        if number in self.norms:
            weight, bias = self._scaled(number, *args[1:3])
            return func(args[0], weight, bias, *args[3:])
        if number in self.left_out:
            return args[0]
        return torch.relu_(args[0]) if number in self.in_place else func(*args, **kwargs)

    def _learn(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        found = func(*args, **kwargs)
        self.functions.append(func)
        self.alive += [args, kwargs, found]
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(found)):  # x.dim() is no reading
            self.readers.update({id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)})
        if func in FRESH and not (func in LINEAR and kwargs):
            self.maker[id(found)] = number
        if func is F.batch_norm:
            norm = self._norm(number, args, kwargs)
            if norm is not None:
                self.seen.append((id(args[0]), number, norm))
        elif func in RELU and found is not args[0]:
            self.seen.append((id(args[0]), number, None))
        return found

    def learn_from_batch(self) -> None:
        """Decide from the first batch what is folded."""
        if self.learnt:
            return
        for read, number, norm in self.seen:
            maker = self.maker.get(read)
            if maker is None or self.readers[read] != 1:
                continue
            if norm is None:
                self.in_place.add(number)
            elif self.functions[maker] in LINEAR:
                self.norms[maker] = norm
                self.left_out.add(number)
        self.maker, self.readers, self.alive, self.seen = {}, Counter(), [], []
        self.learnt = True

    def _norm(self, number: int, args: Any, kwargs: Any) -> Norm | None:
        given = inspect.signature(F.batch_norm).bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        weights = [values["weight"], values["bias"]]
        if values["training"] or values["running_mean"] is None or values["running_var"] is None:
            return None
        if any(w is not None and id(w) not in self.names for w in weights):
            return None
        names = (None if w is None else self.names[id(w)] for w in weights)
        return Norm(number, values["running_mean"], values["running_var"], values["eps"], *names)

    def _scaled(self, number: int, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the weights of a layer with its BatchNorm folded in: worked out once for all batches of a point."""
        if number not in self.scaled:
            norm = self.norms[number]
            scale = torch.rsqrt(norm.var + norm.eps)
            if norm.weight is not None:
                scale = scale * self.values[norm.weight]
            shift = (0 if bias is None else bias) - norm.mean
            shift = shift * scale
            if norm.bias is not None:
                shift = shift + self.values[norm.bias]
            self.scaled[number] = (weight * scale.reshape(-1, *[1] * (weight.dim() - 1)), shift)
        return self.scaled[number]
