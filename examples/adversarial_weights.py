"""Adversarial training with weight perturbation (AWP; Wu et al., 2020): adversarial inputs and weights in one step.

The inputs are moved where the loss rises (PGD), then the weights, by the same step that SAM takes on clean inputs.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from esam import METHODS


def attack(model: nn.Module, x: torch.Tensor, y: torch.Tensor, radius: float, steps: int = 5) -> torch.Tensor:
    """Return inputs within ``radius`` of x, in each pixel, whose loss is high."""
    mode = model.training
    model.eval()  # statistics belong to the step
    delta = torch.empty_like(x).uniform_(-radius, radius)
    for _ in range(steps):
        delta.requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(x + delta), y), delta)
        delta = (delta + 0.5 * radius * slope.sign()).clamp(-radius, radius).detach()
    model.train(mode)
    return (x + delta).clamp(0, 1)


def main(method: str = "sam", epochs: int = 15, batch: int = 64, radius: float = 0.1) -> tuple[float, float]:
    """Train; return the shares of held-out digits that are recognised clean, and under attack."""
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    train, test = order[:1400], order[1400:]

    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = METHODS[method](torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(images), labels, reduction="none")

    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))].split(batch):
            images = attack(model, x[rows], y[rows], radius)  # once a step: both passes see the same inputs
            optimizer.step(loss_of, images, y[rows])

    model.eval()
    moved = attack(model, x[test], y[test], radius, steps=20)
    with torch.no_grad():
        clean, robust = ((model(inputs).argmax(1) == y[test]).float().mean().item() for inputs in (x[test], moved))
    return clean, robust


if __name__ == "__main__":
    print("clean {:.3f}, under attack {:.3f}".format(*main()))
