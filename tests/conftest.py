"""What every test shares: one thread (steady, and fair to neighbours) and a small problem of each kind."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esam import METHODS

torch.set_num_threads(int(os.environ.get("ESAM_TEST_THREADS", "1")))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))  # they are tested too


class Problem:
    """A model, a batch, and the closure of the README."""

    def __init__(self, model, x, y):
        self.model, self.x, self.y = model, x, y
        self.calls = []

    def closure(self, keep):
        self.calls.append(keep)
        return F.cross_entropy(self.model(self.x[keep]), self.y[keep], reduction="none")

    @property
    def weights(self):
        return [p.detach().clone() for p in self.model.parameters()]


def mlp(dtype=torch.float64):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def normalised(dtype=torch.float64):
    """A network with everything that has a state of its own in a forward pass."""
    layers = (
        nn.Linear(6, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(8, 8),
        nn.BatchNorm1d(8, momentum=None),
    )
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(8, 3)).to(dtype)


EVERY_ROW = {name: row for name, row in METHODS.items() if name != "sam-on"}  # which wants norm layers
EVERY_METHOD = {name: method for name, method in EVERY_ROW.items() if "m" in method.options()}
"""The rows of two passes over the whole batch; the others are the base, its controls, and cheaper relatives."""


def problem(build=mlp, batch=12, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    model = build(dtype)
    return Problem(model, torch.randn(batch, 6, dtype=dtype), torch.randint(0, 3, (batch,)))


@pytest.fixture
def make_problem():
    return problem


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """Data that a file's runs keep, apart from the user's; and none of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("ESAM_DATA", raising=False)
        yield
