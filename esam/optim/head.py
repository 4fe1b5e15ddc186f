"""What did the last linear layer see of each sample? Free: a forward hook, and one more input of the first backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Head:
    """The last linear layer at theta, sample by sample."""

    inputs: Tensor
    """What entered the layer, shape (batch, features)."""
    gradients: Tensor
    """The gradient of each sample's own loss at the layer's output, shape (batch, outputs)."""


class HeadWatch:
    """Collects what the model's last ``nn.Linear`` sees in the first pass."""

    def __init__(self, model: nn.Module) -> None:
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        if not layers:
            raise ValueError(
                'this ranking reads the last nn.Linear of the model, and there is none; use ranking="loss" or "exact"'
            )
        self._layer = layers[-1]
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._gradients: list[Tensor] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Collect inside this block."""

        def collect(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if not output.requires_grad:  # no weight before it takes part in this pass
                output = output.detach().requires_grad_().clone()
            self._inputs.append(inputs[0].detach())
            self._outputs.append(output)
            return output

        handle = self._layer.register_forward_hook(collect)
        try:
            yield
        finally:
            handle.remove()

    def take_output(self, samples: int) -> Tensor:
        """Return the output of the pass just run, to be differentiated too."""
        if len(self._outputs) != 1 or self._outputs[0].dim() != 2 or len(self._outputs[0]) != samples:
            shapes = [tuple(output.shape) for output in self._outputs]
            raise ValueError(
                f"this ranking reads the last nn.Linear of the model, called once with one row a sample; it gave "
                f'{shapes} for {samples} samples; use ranking="loss" or "exact"'
            )
        return self._outputs.pop()

    def give_gradient(self, gradient: Tensor, samples: int) -> None:
        """Take the gradient of the mean loss at that output."""
        self._gradients.append(gradient * samples)

    def head(self) -> Head:
        """Return what was collected, all pieces of the batch together."""
        return Head(torch.cat(self._inputs), torch.cat(self._gradients))
