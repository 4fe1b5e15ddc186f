"""Diabetes by a small net: regression, a layer that is not perturbed, and a comparison with the base.

SAM can make short or badly scaled regressions worse: scale the targets, begin with a small rho, and compare with the
base, as here.
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

from esam import METHODS


def main(method: str = "sam", epochs: int = 60, batch: int = 32, **settings: float) -> float:
    """Train; return the mean squared error on held-out patients, in units of the targets' variance."""
    torch.manual_seed(0)
    data = load_diabetes()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target, dtype=torch.float32)
    order = torch.randperm(len(x))
    train, test = order[:350], order[350:]
    x = (x - x[train].mean(0)) / x[train].std(0)
    y = (y - y[train].mean()) / y[train].std()

    body, head = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU()), nn.Linear(64, 1)
    model = nn.Sequential(body, head)
    groups = [{"params": body.parameters()}, {"params": head.parameters(), "perturb": False}]
    optimizer = METHODS[method](torch.optim.AdamW(groups, lr=1e-3, weight_decay=1e-2), model, **settings)

    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (model(inputs).squeeze(1) - targets).square().mean()

    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))].split(batch):
            optimizer.step(loss_of, x[rows], y[rows])

    model.eval()
    with torch.no_grad():
        return (model(x[test]).squeeze(1) - y[test]).square().mean().item()


if __name__ == "__main__":
    print(f"AdamW {main('base'):.3f}, SAM {main('sam', rho=0.02):.3f}")
