"""A GAN with two optimizers: each perturbs its own net while the other is fixed."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from esam import SAM


def net(inputs: int, outputs: int, width: int = 32) -> nn.Sequential:
    """Return a small net."""
    hidden = [nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2)]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def ring(count: int) -> torch.Tensor:
    """Return points near the unit circle."""
    angle = 2 * math.pi * torch.rand(count)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)


def main(steps: int = 1000, batch: int = 64) -> float:
    """Train; return the mean distance of made points from the circle."""
    torch.manual_seed(0)
    maker, judge = net(4, 2), net(2, 1)
    make = SAM(torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.99)), maker, rho=0.01)
    judging = SAM(torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.99)), judge, rho=0.01)

    def judge_loss(real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        return (F.softplus(-judge(real)) + F.softplus(judge(made))).mean()

    def maker_loss(noise: torch.Tensor) -> torch.Tensor:
        return F.softplus(-judge(maker(noise))).mean()

    for _ in range(steps):
        noise = torch.randn(batch, 4)
        with torch.no_grad():
            made = maker(noise)
        judging.step(judge_loss, ring(batch), made)
        judge.requires_grad_(False)  # no gradient is computed for the net that is fixed
        make.step(maker_loss, noise)
        judge.requires_grad_(True)

    with torch.no_grad():
        return (maker(torch.randn(1000, 4)).norm(dim=1) - 1).abs().mean().item()


if __name__ == "__main__":
    print(f"distance from the circle {main():.3f}")
