"""What the tests of other packages assert, in our words: does it hold here? And what the bench times next to ours.

More of it is asked elsewhere: every base and wrapper of theirs in test_bases.py, what they refuse in test_errors.py,
frozen layers in test_properties.py, groups and schedulers in test_contract.py.
"""

import pytest
import torch
import torch.nn.functional as F
from conftest import problem, sgd
from old_sam import OldSAM, assert_close, batches, net, two_steps
from peers import PEERS, ReleasedESAM, TwoStepSAM
from torch import nn

import esam
from esam import SAM, compat
from esam.bench.config import Bench
from esam.bench.steps import bench_steps

pytestmark = pytest.mark.filterwarnings("ignore:::pytorch_optimizer")

# pytorch_optimizer ---------------------------------------------------------------------------------------------------


def taken(optimizer, model, data, loss_of=F.cross_entropy):
    for x, y in data:
        optimizer.step(lambda x, y: loss_of(model(x), y), x, y)
    return model


def base_of(name):
    return getattr(torch.optim, name, None) or getattr(pytest.importorskip("pytorch_optimizer"), name)


@pytest.mark.parametrize("adaptive", [False, True])
def test_fifty_steps_of_their_sam_are_ours(adaptive):
    theirs = pytest.importorskip("pytorch_optimizer")
    a, b = net(norm=False), net(norm=False)
    base, row = torch.optim.AdamW(a.parameters(), lr=1e-2), esam.METHODS["asam" if adaptive else "sam"]
    taken(row(base, a, rho=0.1, **({"eta": 0.0} if adaptive else {})), a, batches(50))
    two_steps(b, theirs.SAM(b.parameters(), torch.optim.AdamW, rho=0.1, adaptive=adaptive, lr=1e-2), batches(50))
    assert_close(a, b, 1e-6)  # float64; Adam divides by gradients near their 1e-12


@pytest.mark.parametrize("base", ["AdamW", "ASGD", "AdamP"])
@pytest.mark.parametrize("method", ["sam", "asam", "looksam", "slicesam"])
def test_a_logistic_regression_loses_half_of_its_loss(method, base):
    """A smoke test, with their kind of threshold."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(64, 2)
    y = (x.sum(1) > 0).long()
    optimizer = esam.METHODS[method](base_of(base)(model.parameters(), lr=1.0 if base == "ASGD" else 0.1), model)
    losses = [
        float(optimizer.step(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)) for _ in range(40)
    ]
    assert losses[-1] < 0.5 * losses[0]


# davda54/sam, optax, composer ----------------------------------------------------------------------------------------


def test_the_names_of_sam_py_are_those_of_compat():
    optimizer = compat.SAM(net().parameters(), torch.optim.SGD, lr=0.1, rho=0.05, adaptive=True)
    assert callable(optimizer.first_step) and callable(optimizer.second_step)
    assert type(optimizer.base_optimizer) is torch.optim.SGD
    assert optimizer.param_groups is optimizer.base_optimizer.param_groups


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("method", ["sam", "asam", "looksam", "fsam", "gsam", "msam", "slicesam"])
def test_a_parabola_is_descended_to_its_minimum(method, base):
    """Of optax: the sum of (w - 1)^2 from (-1, 10, 1), a loss without a batch, is reached to within the radius."""
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 10.0, 1.0]]))
    settings = {"lr": 0.05, "momentum": 0.5} if base is torch.optim.SGD else {"lr": 0.2}
    optimizer = esam.METHODS[method](base(model.parameters(), **settings), model, rho=0.01, loss="whole")
    for _ in range(300):
        optimizer.step(lambda _: (model.weight - 1).square().sum())
    torch.testing.assert_close(model.weight, torch.ones(1, 3).double(), rtol=0, atol=0.02)  # twice the radius


def test_looksam_without_its_memory_is_composers_interval():
    """With an interval of ten, twenty steps call the loss 22 times."""
    (one, two), calls = (net(norm=False), net(norm=False)), []
    settings = {"lr": 0.1, "momentum": 0.9}
    optimizer = esam.LookSAM(torch.optim.SGD(one.parameters(), **settings), one, rho=0.1, k=10, alpha=0.0)
    taken(optimizer, one, batches(20), lambda out, y: calls.append(len(y)) or F.cross_entropy(out, y))
    assert len(calls) == 22
    old = OldSAM(two.parameters(), torch.optim.SGD, rho=0.1, **settings)
    for number, batch in enumerate(batches(20)):
        old.param_groups[0]["rho"] = 0.1 if number % 10 == 0 else 0.0
        two_steps(two, old, [batch])
    assert_close(one, two)


# What the bench times ------------------------------------------------------------------------------------------------


def test_the_two_step_pattern_takes_sams_steps():
    p, q = problem(), problem()
    pattern, ours = TwoStepSAM(sgd(p)), SAM(sgd(q), q.model)
    for _ in range(5):
        for half in (pattern.first_step, pattern.second_step):
            p.loss_of(p.x, p.y).mean().backward()
            half()
        q.step(ours)
    assert_close(p.model, q.model, 1e-10)


def test_the_released_form_pays_three_forward_passes_and_returns_to_theta_before_it_steps():
    p, sizes = problem(), []
    optimizer, before = ReleasedESAM(sgd(p, lr=0.0), p.model), p.weights
    p.model.register_forward_hook(lambda module, inputs, output: sizes.append((len(output), output.requires_grad)))
    optimizer.step(p.x, p.y)
    # the ranking pass has no graph; of the half that it keeps, the one at the cutoff is lost
    assert sizes == [(12, True), (12, False), (5, True)]
    torch.testing.assert_close(p.weights, before, rtol=0, atol=1e-12)


def test_without_sds_the_released_form_still_ranks():
    result = bench_steps(Bench(model="mlp", batch_size=8, size=8, rounds=1), PEERS)
    counted = {name: (row["forwards"], row["backwards"]) for name, row in result["contenders"].items()}
    assert counted == {
        "sam, two-step pattern": (2, 2),
        "esam, as released": (pytest.approx(2.375), pytest.approx(1.375)),
        "esam-swp, as released": (3, 2),
    }
