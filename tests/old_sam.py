"""What tests of the ways in share: a small problem, and SAM by two steps as it is widely copied, nothing repaired."""

import torch
import torch.nn.functional as F
from torch import nn


def net(norm=True):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.BatchNorm1d(16) if norm else nn.Identity(), nn.ReLU(), nn.Linear(16, 3)]
    return nn.Sequential(*layers).double()


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 6, generator=generator).double(), torch.randint(3, (8,), generator=generator)


class OldSAM(torch.optim.Optimizer):
    """The two steps that sam.py and pytorch_optimizer take; weights are put back by a copy."""

    def __init__(self, params, base_optimizer, rho=0.05, adaptive=False, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base, self.adaptive = base_optimizer(self.param_groups, **kwargs), adaptive

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.theta = [p.clone() for p in self.weights]
        scales = [p.abs() if self.adaptive else torch.ones_like(p) for p in self.weights]
        norm = torch.stack([(s * p.grad).norm() for s, p in zip(scales, self.weights, strict=True)]).norm()
        for s, p in zip(scales, self.weights, strict=True):
            p.add_(s * s * p.grad * float(self.param_groups[0]["rho"] / (norm + 1e-12)))
        self.zero_grad() if zero_grad else None

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for p, theta in zip(self.weights, self.theta, strict=True):
            p.copy_(theta)
        self.base.step()
        self.zero_grad() if zero_grad else None

    def step(self, closure):
        self.first_step(zero_grad=True)
        closure()
        self.second_step()


def two_steps(model, optimizer, data, scheduler=None):
    """The loop of sam.py's README."""
    for x, y in data:
        F.cross_entropy(model(x), y).backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step(zero_grad=True)
        if scheduler is not None:
            scheduler.step()


def plain_steps(model, optimizer, data):
    """Anyone's loop."""
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
