"""Which samples take the second pass?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Head:
    """The model's last linear layer at theta, sample by sample."""

    inputs: Tensor
    """What entered the layer, shape (batch, features)."""
    gradients: Tensor
    """The gradient of each sample's own loss at the layer's output, shape (batch, outputs)."""


@dataclass(frozen=True)
class Candidates:
    """What a ranking may read: the samples of the batch at the moment of selection."""

    losses: Tensor
    """The loss of each sample at theta, detached, in the order of the batch."""
    perturbed_losses: Callable[[], Tensor]
    """Run the batch forward at theta + eps and return the loss of each sample: costs one forward pass."""
    new_generator: Callable[[], torch.Generator]
    """Return ``generator``; drawn only where it is asked for."""
    head: Head | None = None
    """What the last linear layer saw at theta; only for rankings marked by ``reads_head``."""

    @property
    def generator(self) -> torch.Generator:
        """A CPU generator of this step, for rankings that draw."""
        return self.new_generator()


Ranking = Callable[[Candidates], Tensor]
"""Candidates -> one score a sample; the samples with the highest scores are kept."""


def exact(batch: Candidates) -> Tensor:
    """Score by the rise of the loss under eps, as the paper does. Price: one forward pass."""
    return batch.perturbed_losses() - batch.losses


def random(batch: Candidates) -> Tensor:
    """Score by a coin: free, the paper's control."""
    return torch.rand(len(batch.losses), generator=batch.generator, device="cpu").to(batch.losses.device)


def reads_head(ranking: Ranking) -> Ranking:
    """Mark a ranking that reads ``Candidates.head``."""
    ranking.reads_head = True  # type: ignore[attr-defined]
    return ranking


@reads_head
def aligned(batch: Candidates) -> Tensor:
    """Score by the product of the sample's gradient with the batch's in the last linear layer: free, for any loss.

    To first order and up to a factor, it is the rise that the layer's part of SAM's eps brings.
    """
    assert batch.head is not None, "a ranking marked by reads_head is given the head"
    # in float32 at least, and outside of autocast: products of gradients overflow half precision
    with torch.autocast(batch.losses.device.type, enabled=False):
        inputs, gradients = (_at_least_float32(t) for t in (batch.head.inputs, batch.head.gradients))
        moved = inputs @ (inputs.T @ gradients) + gradients.sum(0)  # how the layer's outputs move along that eps
        return (gradients * moved).sum(1)


RANKINGS: dict[str, Ranking] = {"exact": exact, "aligned": aligned, "random": random}


def keep_highest(scores: Tensor, gamma: float, least: int = 1) -> Tensor:
    """Return the indices of the share ``gamma`` with the highest scores, in ascending order.

    Exactly ``round(gamma * B)`` of them, but no fewer than ``least``; ties go to the lower index; a NaN comes last.

    >>> keep_highest(torch.tensor([0.1, 0.7, 0.7, 0.3]), gamma=0.5)
    tensor([1, 2])
    """
    k = max(least, round(gamma * len(scores)))
    order = torch.sort(scores, descending=True, stable=True).indices
    order = order[torch.isnan(scores)[order].byte().sort(stable=True).indices]  # torch sorts NaN first
    return order[:k].sort().values


def drawn_subset(size: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw ``count`` of ``size`` samples; return their indices and those of the rest, each in ascending order."""
    draws = torch.rand(size, generator=generator, device="cpu")
    order = torch.sort(draws, descending=True, stable=True).indices
    return order[:count].sort().values, order[count:].sort().values


def checked_ranking(ranking: str | Ranking) -> Ranking:
    """Return the ranking of that name, or the caller's own function."""
    if callable(ranking):
        return ranking
    if ranking not in RANKINGS:
        raise ValueError(f"ranking must be one of {', '.join(RANKINGS)} or a function of Candidates, got {ranking!r}")
    return RANKINGS[ranking]


def checked_scores(scores: object, batch: Candidates) -> Tensor:
    """Return a ranking's scores, or say what is wrong with them."""
    shape = tuple(batch.losses.shape)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != shape:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"the ranking returned {got}; return one score for each sample: a tensor of shape {shape}")
    return scores


class HeadRecorder:
    """Records what the model's last ``nn.Linear`` sees in the first pass: a hook, and one more input of backward."""

    def __init__(self, model: nn.Module) -> None:
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        if not layers:
            raise ValueError('ranking="aligned" reads the last nn.Linear of the model, and there is none; use "exact"')
        self._layer = layers[-1]
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._gradients: list[Tensor] = []

    def attach(self) -> Any:
        """Record from now on; return the handle whose ``remove`` ends it."""

        def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if not output.requires_grad:  # no weight before it takes part in this pass
                output = output.detach().requires_grad_().clone()
            self._inputs.append(inputs[0].detach())
            self._outputs.append(output)
            return output

        return self._layer.register_forward_hook(record)

    def take_output(self, samples: int) -> Tensor:
        """Return the output of the pass just run, to be differentiated too."""
        if len(self._outputs) != 1 or self._outputs[0].dim() != 2 or len(self._outputs[0]) != samples:
            shapes = [tuple(output.shape) for output in self._outputs]
            raise ValueError(
                f'ranking="aligned" reads the last nn.Linear of the model, called once with one row a sample; it gave '
                f'{shapes} for {samples} samples; use "exact"'
            )
        return self._outputs.pop()

    def give_gradient(self, gradient: Tensor | None, factor: float | Tensor) -> None:
        """Take the gradient at that output; times ``factor`` it is that of each sample's own loss."""
        assert gradient is not None, "the output was asked for"
        self._gradients.append(_at_least_float32(gradient) * factor)

    def head(self, pieces: list[int]) -> Head:
        """Return what was recorded in these pieces of the batch, joined."""
        inputs, gradients = ([seen[i] for i in pieces] for seen in (self._inputs, self._gradients))
        return Head(torch.cat(inputs), torch.cat(gradients))


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
