"""What is trained? The tasks of the trial: data, net, base optimizer and where its search begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import nets
from .data import Split, augmented, pictures, text


@dataclass(frozen=True)
class Task:
    """One task, and the base optimizer's settings that the pilot starts from."""

    title: str
    split: Callable[..., Split]
    """(seed=, purpose=) -> the samples of a run."""
    net: Callable[[], nn.Module]
    optimizer: Literal["sgd", "adamw"]
    lr: float
    weight_decay: float
    epochs: float
    batch: int
    shift: int = 0
    """Augmentation: flips, and shifts by up to so many pixels; 0: none."""
    judged_by: Literal["accuracy", "loss"] = "accuracy"
    longest: float = 1
    """The budget: how many times ``epochs`` the search may give to a run."""
    airbench: bool = False
    """Whether training runs in bfloat16 by autocast (weights, loss and evaluation stay float32), and SGD is Nesterov's,
    with 64 times the learning rate for biases."""

    def base(self, net: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """Return the base optimizer; AdamW does not decay vectors."""
        if self.airbench:
            weights = [p for p in net.parameters() if p.requires_grad and p.dim() > 1]
            biases = [p for p in net.parameters() if p.requires_grad and p.dim() <= 1]
            rates = [{"params": weights}, {"params": biases, "lr": 64 * lr, "weight_decay": weight_decay / 64}]
            return torch.optim.SGD(rates, lr=lr, momentum=0.9, weight_decay=weight_decay, nesterov=True)
        if self.optimizer == "sgd":
            return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay)
        matrices = [p for p in net.parameters() if p.dim() > 1]
        vectors = [p for p in net.parameters() if p.dim() <= 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay)

    def augment(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return the batch as it is trained on."""
        return augmented(inputs, self.shift, generator) if self.shift else inputs


def sample_losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Return one loss a sample: of an image, or the mean over a window's characters."""
    if scores.dim() == 2:
        return F.cross_entropy(scores, targets, reduction="none")
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets).mean(1)


LENGTH, CHARACTERS = 64, 65

TASKS: dict[str, Task] = {
    "cifar10": Task(
        "CIFAR-10, 4,000 images, augmented, ResNet-8 (32 wide)",
        partial(pictures, "cifar10", train=4_000, judge=4_000, size=16),
        partial(nets.resnet, 1, 32, 10),
        "sgd", 0.1, 5e-4, 20, 128, shift=2, longest=4,
    ),
    "noisy": Task(
        "CIFAR-10, 4,000 images, 20 % wrong labels, ResNet-8 (32 wide)",
        partial(pictures, "cifar10", train=4_000, judge=4_000, size=16, wrong=0.2),
        partial(nets.resnet, 1, 32, 10),
        "sgd", 0.1, 5e-4, 20, 128,
    ),
    "finetune": Task(
        "CIFAR-100, 2,500 images, augmented, pretrained ResNet-20",
        partial(pictures, "cifar100", train=2_500, judge=4_000, size=32),
        partial(nets.pretrained_resnet20, 100),
        "sgd", 0.03, 5e-4, 8, 64, shift=4,
    ),
    "vit": Task(
        "CIFAR-10, 4,000 images, augmented, ViT, AdamW",
        partial(pictures, "cifar10", train=4_000, judge=4_000, size=16),
        partial(nets.vit, 10),
        "adamw", 1e-3, 0.05, 20, 128, shift=2,
    ),
    "gpt": Task(
        "Shakespeare, 200,000 characters, GPT, AdamW",
        partial(text, train=200_000, judge=50_000, length=LENGTH),
        partial(nets.gpt, CHARACTERS, LENGTH),
        "adamw", 2e-3, 0.1, 8, 64, judged_by="loss",
    ),
    "full": Task(
        "CIFAR-10, all 50,000 at 32 px, half-width airbench-like net",
        partial(pictures, "cifar10", train=50_000, judge=5_000, size=32, pool=50_000),
        partial(nets.air, 10),
        "sgd", 0.75, 5e-4, 10, 512, shift=2, airbench=True,
    ),
}  # fmt: skip
