"""Data and a model for runs under torchrun, one rank of which is killed once, in the middle of an epoch."""

import os
import signal
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from esam.train import Task

SAMPLES, BATCH = 22, 4
STEPS = -(-SAMPLES // BATCH)
KILLED_IN_EPOCH = 3
_backward_passes = 0


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def losses(outputs, targets):
    """Return cross entropies; on rank 1, where the variable names a file that is not there, once end by SIGKILL."""
    global _backward_passes
    _backward_passes += torch.is_grad_enabled()
    marker = os.environ.get("FAULTY_ONCE")
    due = _backward_passes > 2 * STEPS * (KILLED_IN_EPOCH - 1) + 3  # SAM takes two a step
    if marker and due and os.environ.get("RANK") == "1" and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return F.cross_entropy(outputs, targets, reduction="none")


def task():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES + 5, 4, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 3, (SAMPLES + 5,), generator=generator)
    return Task((x[:SAMPLES], y[:SAMPLES]), (x[SAMPLES:], y[SAMPLES:]), losses)
