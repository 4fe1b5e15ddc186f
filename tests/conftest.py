"""What every test shares: one thread (steady, and fair to neighbours) and a small problem of each kind."""

import os
import shutil
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
    """A model, a batch, and the loss function of the README; what ran is in ``calls`` and ``keeps``."""

    def __init__(self, model, x, y):
        self.model, self.x, self.y = model, x, y
        self.calls, self.keeps = [], []

    def loss_of(self, x, y):
        self.calls.append(len(x))
        return F.cross_entropy(self.model(x), y, reduction="none")

    def closure(self, keep):
        self.keeps.append(keep)
        return self.loss_of(self.x[keep], self.y[keep])

    def step(self, optimizer, loss_of=None, **how):
        return optimizer.step(loss_of or self.loss_of, self.x, self.y, **how)

    def visited(self, optimizer, loss_of=None):
        """Take a step; return how far from theta each of its forward passes ran."""
        theta, seen = self.weights, []
        hook = self.model.register_forward_pre_hook(
            lambda *_: seen.append([w - t for w, t in zip(self.weights, theta, strict=True)])
        )
        self.step(optimizer, loss_of)
        hook.remove()
        return seen

    @property
    def weights(self):
        return [p.detach().clone() for p in self.model.parameters()]


def mlp(dtype=torch.float64):
    layers = (nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    return nn.Sequential(*layers).to(dtype)


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


def assert_same(a, b, atol=0.0):
    """Equal bit for bit, or so near: models with their buffers, tensors, and lists and dicts of them."""
    values = [t.state_dict() if isinstance(t, nn.Module) else t for t in (a, b)]
    values = [v if isinstance(v, (dict, torch.Tensor)) else list(v) for v in values]
    torch.testing.assert_close(*values, rtol=0, atol=atol, equal_nan=True)


def sgd(p, **settings):
    return torch.optim.SGD(p.model.parameters(), **{"lr": 0.05, "momentum": 0.9, **settings})


PERTURBING = [name for name, row in METHODS.items() if row.kind == "method"]


def problem(build=mlp, batch=12, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    model = build(dtype)
    return Problem(model, torch.randn(batch, 6, dtype=dtype), torch.randint(0, 3, (batch,)))


BASES = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "fused adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, fused=True),
}


def start(name, build=mlp, *, base="sgd", batch=12, dtype=torch.float64, **settings):
    """Return a problem and the optimizer of a row; one that perturbs every k-th step has k = 2: both kinds come up."""
    p = problem(build, batch, dtype=dtype)
    settings = {"seed": 3, **({"k": 2} if "k" in METHODS[name].options() else {}), **settings}
    return p, METHODS[name](BASES[base](p.model.parameters()), p.model, **settings)


def same(one, other):
    """Whether two states hold the same keys, types and bits."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


class Interrupted(Exception):
    """What ends a run of a test in the middle."""


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


TIMES = {"seconds", "train_seconds", "cpu_seconds", "images_per_second", "peak_memory", "started"}


def timeless(value):
    """Return a record, or lines of one, without what differs from one day to the next."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in TIMES}
    return [timeless(v) for v in value] if isinstance(value, (list, tuple)) else value


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """Data that a file's runs keep, apart from the user's; and none of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("ESAM_DATA", raising=False)
        yield


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A real browser; tests that need it are skipped where there is none."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs Debian's chromium and chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    flags = "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    for flag in [*flags.split(), "--disable-component-update", "--disable-sync", profile]:
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()
