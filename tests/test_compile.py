"""A compiled model: does a step see the compiled graph's own weights, and does it stop compiling?

A step runs the model in up to three ways: training, training with frozen statistics, and the ranking without a graph.
Each may cost one graph, and one more for a batch of another size; none may cost one a step.
"""

import os
import shutil

import pytest
import torch
import torch._dynamo
import torch._inductor.config
import torch.nn.functional as F
from conftest import assert_same
from torch import nn

from esam import METHODS

STEPS = 12  # LookSAM perturbs in the first, the sixth and the eleventh


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self, backend):
        self.compile = torch._dynamo.lookup_backend(backend)
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return self.compile(graph, inputs)


def network():
    layers = (nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())
    return nn.Sequential(*layers, nn.Linear(8, 3)).double()


def small_network():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def trained(name, backend=None, sizes=(12,), steps=STEPS, build=network, late=False, **settings):
    """Return the model, the losses, and how many graphs there were after each step."""
    torch.manual_seed(0)
    model = build()
    compiled = model if backend is None else torch.compile(model, backend=backend)
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    optimizer = METHODS[name](base, model if late else compiled, seed=3, **settings)
    generator = torch.Generator().manual_seed(1)
    losses, graphs = [], []
    for step in range(steps):
        run = model if late and step == 0 else compiled
        batch = sizes[step % len(sizes)]
        x = torch.randn(batch, 6, dtype=torch.float64, generator=generator)
        y = torch.randint(0, 3, (batch,), generator=generator)
        losses.append(optimizer.step(lambda x, y, run=run: F.cross_entropy(run(x), y, reduction="none"), x, y))
        graphs.append(getattr(backend, "graphs", 0))
    return model, losses, graphs


CASES = {
    # all the ways in which a step runs a model
    **{name: (name, "aot_eager", {}) for name in ("sam", "looksam", "esam")},
    "esam in groups": ("esam", "aot_eager", {"m": 4}),
    # what is traced anew, at the least price; kept parts have one size
    **{name: (name, "eager", {}) for name in ("base-part", "ae-sam", "esam-random", "slicesam", "msam")},
    "any size": ("esam", "eager", {"sizes": range(4, 16)}),
    "compiled after the first step": ("esam", "eager", {"late": True}),
}


@pytest.mark.parametrize(("name", "backend", "how"), CASES.values(), ids=CASES)
def test_compiled_steps_equal_the_eager_ones_and_no_graph_is_made_after_the_first_steps(name, backend, how):
    compiled, eager = trained(name, Counting(backend), **how), trained(name, **how)
    assert_same(compiled[1], eager[1], 1e-12)
    assert_same(compiled[0], eager[0], 1e-12)
    graphs = compiled[2]
    assert 0 < graphs[-1] <= 6
    assert graphs[-1] == graphs[0 if backend == "aot_eager" else 5]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_inductors_code_equals_eager_to_rounding_with_one_graph_for_both_passes():
    """SAM runs both passes alike; a C++ compiler takes seconds a graph, so the network is the smallest that bends."""
    with torch._inductor.config.patch({"cpp.simdlen": 1}):  # its vector code does not compile on every processor
        compiled = trained("sam", Counting("inductor"), steps=5, build=small_network)
    assert_same(compiled[0], trained("sam", steps=5, build=small_network)[0], 1e-12)
    assert compiled[2][-1] == 1
