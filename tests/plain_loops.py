"""What tests of the ways in share: a small problem, and loops as anyone writes them."""

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
