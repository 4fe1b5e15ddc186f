"""Digits by a small convolutional net: the plainest loop."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from esam import SAM


def main(epochs: int = 20, batch: int = 64) -> float:
    """Train; return the share of held-out digits that are recognised."""
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x))
    train, test = order[:1400], order[1400:]

    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3), model, rho=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(images), labels)

    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))].split(batch):
            optimizer.step(loss_of, x[rows], y[rows])
        scheduler.step()

    model.eval()
    with torch.no_grad():
        return (model(x[test]).argmax(1) == y[test]).float().mean().item()


if __name__ == "__main__":
    print(f"accuracy {main():.3f}")
