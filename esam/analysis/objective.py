"""Which loss is looked at, as a function of the parameters?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Parameters = Mapping[str, Tensor]
Objective = Callable[[Parameters], Tensor]
"""Parameters by name -> mean loss over a fixed set, the same each time it is asked.

A function of your own must leave its model alone by itself: BatchNorm in training mode moves its statistics even where
the answer is the same. ``ModelObjective`` takes care of that.
"""
Loss = Callable[[Any, Tensor], Tensor]
"""(outputs, targets) -> one loss per sample."""
Batch = tuple[Any, Tensor]

REPEAT_TOLERANCE = 1e-5
"""Sums in another order differ by less than this, relative; dropout and augmentation by much more."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


class ModelObjective:
    """The mean loss of a model over fixed batches, in eval mode, as a function of the model's parameters.

    The batches are read once and kept; the model is only read. Its buffers (running statistics) are those of the
    moment when the objective was made.

    Args:
        model: Any module; called as ``model(inputs)``.
        batches: ``(inputs, targets)``, such as a list, a DataLoader or any other iterable.
        loss: (outputs, targets) -> one loss per sample.

    >>> model = nn.Linear(2, 2)
    >>> objective = ModelObjective(model, [(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))])
    >>> objective({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
    tensor(0.6931)
    """

    def __init__(self, model: nn.Module, batches: Iterable[Batch], loss: Loss = cross_entropy) -> None:
        self.model, self.loss = model, loss
        with random_stream_kept(model.parameters()):  # a DataLoader draws a seed when it starts
            self.batches: Sequence[Batch] = [(x, y) for x, y in batches]
        if not self.batches:
            raise ValueError("there are no batches: give at least one pair (inputs, targets)")
        self.count = sum(len(y) for _, y in self.batches)
        # copies: whatever a forward pass writes into its buffers, the caller's are not written
        self._buffers = {name: b.detach().clone() for name, b in model.named_buffers()}

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Copies of the model's parameters as they are now: where one usually looks from."""
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def __call__(self, parameters: Parameters) -> Tensor:
        """Return the mean loss over all samples."""
        return torch.stack([losses.sum() for losses in self._losses(parameters)]).sum() / self.count

    def losses(self, parameters: Parameters) -> Tensor:
        """Return the loss of each sample, in the order of the batches."""
        return torch.cat(list(self._losses(parameters)))

    def parts(self) -> list[ModelObjective]:
        """Return one objective for each batch; this one is their mean, weighted by ``count``."""
        return [self._of([batch]) for batch in self.batches]

    def groups(self, m: int) -> list[ModelObjective]:
        """Return one objective for each m consecutive samples; the last one may hold fewer."""
        if m < 1:
            raise ValueError(f"a group must have 1 sample or more, got {m!r}")
        x, y = self._samples()
        return [self._of([group]) for group in zip(torch.split(x, m), torch.split(y, m), strict=True)]

    def only(self, rows: Tensor) -> ModelObjective:
        """Return the mean loss over these samples alone, counted in the order of the batches."""
        x, y = self._samples()
        return self._of([(x[rows], y[rows])])

    def _samples(self) -> tuple[Tensor, Tensor]:
        inputs, targets = zip(*self.batches, strict=True)
        if not all(isinstance(x, Tensor) for x in inputs):
            raise ValueError("the inputs are no tensors, so single samples cannot be taken; give batches of tensors")
        return torch.cat(inputs), torch.cat(targets)

    def _of(self, batches: Sequence[Batch]) -> ModelObjective:
        part = type(self)(self.model, batches, self.loss)
        part._buffers = self._buffers
        return part

    def _losses(self, parameters: Parameters) -> Iterator[Tensor]:
        with evaluating(self.model):
            for x, y in self.batches:
                values = {**self._buffers, **parameters}
                outputs = torch.func.functional_call(self.model, values, (x,))
                yield _checked_losses(self.loss(outputs, y), len(y))


def repeats(objective: Objective, parameters: Parameters, *, first: Tensor | None = None) -> float:
    """Return the objective's value, asked twice; refuse it where it answers differently.

    ``first`` is an answer that is known already. The random stream comes back as it was.
    """
    with torch.no_grad(), random_stream_kept(parameters.values()):
        answers = [float(objective(parameters) if first is None else first), float(objective(parameters))]
    before, after = answers
    if same_answer(before, after):
        return before
    raise ValueError(
        f"the objective answered {before!r} and then {after!r} for the same parameters, so nothing can be compared: "
        "something in it is random. Call model.eval() (dropout, BatchNorm in training mode), and use the same samples "
        "each time, without shuffling or augmentation; ModelObjective(model, batches) does all of this"
    )


def same_answer(first: float, second: float) -> bool:
    """Tell whether two losses are equal up to the order of their sums; NaN equals NaN."""
    close = math.isclose(first, second, rel_tol=REPEAT_TOLERANCE, abs_tol=1e-12)
    return close or (math.isnan(first) and math.isnan(second))


def value_and_gradient(objective: Objective, parameters: Parameters) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and its gradient by name, zero for a parameter that the loss does not use.

    A ModelObjective is differentiated batch by batch: no more memory than one batch takes.
    """
    theta = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    gradient = {name: torch.zeros_like(p) for name, p in parameters.items()}
    values = []
    for part, share in weighted_parts(objective):
        with torch.enable_grad():
            loss = share * part(theta)
            gradients = torch.autograd.grad(loss, list(theta.values()), allow_unused=True)
        values.append(loss.detach())
        for name, g in zip(theta, gradients, strict=True):
            if g is not None:
                gradient[name] = gradient[name] + g
    return torch.stack(values).sum(), gradient


def weighted_parts(objective: Objective) -> list[tuple[Objective, float]]:
    """Return objectives and their weights in the sum that the objective is: a ModelObjective's batches, or itself."""
    if isinstance(objective, ModelObjective):
        return [(part, part.count / objective.count) for part in objective.parts()]
    return [(objective, 1.0)]


def norm_of(tensors: Iterable[Tensor]) -> Tensor:
    """Return the l2 norm of all elements of all tensors, in float64."""
    norm: Tensor = torch.stack([t.detach().double().norm() for t in tensors]).norm()
    return norm


def moved(parameters: Parameters, direction: Parameters, t: float = 1.0) -> dict[str, Tensor]:
    """Return theta + t * direction, detached; a parameter that the direction does not name stays where it is."""
    if unknown := set(direction) - set(parameters):
        raise ValueError(
            f"the direction names {sorted(unknown)[0]!r}, which is no parameter; use the parameters' names"
        )
    theta = {name: p.detach() for name, p in parameters.items()}
    return {name: torch.add(p, direction[name], alpha=t) if name in direction else p for name, p in theta.items()}


def random_stream_kept(tensors: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Let the random streams of the CPU and of the tensors' devices be drawn from, and put them back."""
    devices = {t.device for t in tensors if t.device.type != "cpu"}
    return torch.random.fork_rng(devices, device_type=next((device.type for device in devices), "cuda"))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Hold a model in eval mode; every module's own mode comes back."""
    modes = [(module, module.training) for module in model.modules() if module.training]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def _checked_losses(losses: Tensor, count: int) -> Tensor:
    if losses.dim() == 0 or len(losses) != count:
        raise ValueError(
            f"the loss returned shape {tuple(losses.shape)} for {count} samples; "
            'return one loss per sample (reduction="none")'
        )
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)
