"""What does ``.grad`` hold while a step runs: of which samples, in which units, of which ranks?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from .distributed import SingleProcess, backward_into
from .gradients import Gradients
from .pieces import LossKind


class Accumulator:
    """The gradient that the base will step by, in ``.grad``, scaled where there is a scaler."""

    def __init__(
        self,
        parameters: list[Tensor],
        ranks: SingleProcess,
        loss: LossKind,
        scaler: GradScaler | None,
        backward: Callable[[Tensor], Any] | None,
    ) -> None:
        self.parameters, self.ranks, self.loss = parameters, ranks, loss
        self.scaler, self._backward = scaler, backward
        device = parameters[0].device if parameters else torch.device("cpu")
        self.scale: Tensor | None = None if scaler is None else scaler.scale(torch.ones((), device=device))
        self.unit, self.samples = 0, 0
        """Samples of the first and of all means that are in it; it is in units of the first."""
        self.shared = not ranks.replicated
        """Whether it is the same on every rank."""
        self.sparse: set[int] = set()
        """The tensors whose gradients are sparse."""
        self._noted: tuple[Tensor, Tensor, int] | None = None
        """A tensor with the ``.grad`` that this step has left there, and how often that had been written to."""
        for p in parameters:
            p.grad = None

    def gradients(self, loss: Tensor, inputs: Sequence[Any]) -> list[Tensor | None]:
        """Return gradients, scaled; ``.grad`` is not touched."""
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        if self._backward is None:
            return self.ranks.gradients(scaled, inputs)
        backward = self._backward
        return backward_into(lambda: backward(scaled), self.parameters, inputs)

    def backward(self, loss: Tensor, factor: float | Tensor) -> None:
        """Add ``factor`` times the gradient of a loss."""
        if self._noted is not None and (
            self._noted[0].grad is not self._noted[1] or self._noted[1]._version != self._noted[2]
        ):
            raise ValueError(
                "the loss function has cleared or replaced .grad, which holds a part of this step's gradient; "
                "leave zero_grad() out of it"
            )
        if isinstance(factor, Tensor) or factor != 1:
            loss = loss * factor
        loss = loss if self.scaler is None else self.scaler.scale(loss)
        if self._backward is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._backward(loss)
        self._note()

    def _note(self) -> None:
        p = next((p for p in self.parameters if p.grad is not None), None)
        self._noted = None if p is None or p.grad is None else (p, p.grad, p.grad._version)

    @property
    def unclaimed(self) -> bool:
        """Whether it is there, and not a trainer's or a scaler's, which may have skipped the step."""
        skips = self.scaler is not None or self._backward is not None
        return not skips and any(p.grad is not None for p in self.parameters)

    def add(self, gradients: Gradients, share: float) -> None:
        """Add ``share`` times these gradients."""
        ranks, factor = self.ranks, share if self.scale is None else self.scale * share
        if isinstance(factor, Tensor) or factor != 1 or not gradients.fresh:
            gradients = gradients * factor  # new memory: that of a first gradient may be another's too
        self.shared = self.shared and gradients.shared
        for n, g in gradients:
            p = self.parameters[n]
            if n in self.sparse and not ranks.sharded:
                g = g.to_sparse(1)  # its base wants it so
            if p.grad is None and not ranks.sharded:
                p.grad = g
            elif p.grad is None:
                p.grad = torch.empty_like(p)
                ranks.local([p.grad])[0].copy_(g)
            elif g.is_sparse:
                p.grad = p.grad + g
            else:
                ranks.local([p.grad])[0].add_(g)
        self._note()

    def now(self) -> Gradients:
        """Return what it holds."""
        index = [n for n, p in enumerate(self.parameters) if p.grad is not None]
        gradients = self.ranks.named(index, self.ranks.local([self.parameters[n].grad for n in index]))
        return gradients.like(gradients.index, gradients.tensors, shared=self.shared)

    def weight(self, count: int, *, last: bool) -> float:
        """Return what the mean over ``count`` more samples counts for.

        The last of them makes it the mean of all, before it is exchanged: ranks may differ in size.
        """
        if self.loss == "sum":
            return 1.0
        self.unit, self.samples = self.unit or count, self.samples + count
        if not last:
            return count / self.unit
        if self.samples != count:
            self.take_mean()
        return count / self.samples

    def take_mean(self) -> None:
        """Make it the mean over all samples so far."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if gradients and self.unit != self.samples:
            torch._foreach_mul_(self.ranks.local(gradients), self.unit / self.samples)
            self._note()

    def share(self) -> None:
        """Make it the mean over the ranks, where no backward has."""
        if not self.shared:
            for n, mean in self.ranks.mean(self.now(), self.parameters):
                self.parameters[n].grad = mean
            self.shared = True
