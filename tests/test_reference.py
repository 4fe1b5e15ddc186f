"""The fast path against the papers' own loops, and against numbers worked out by hand."""

import copy
import math

import pytest
import torch
from conftest import problem
from torch import nn

from esam import ASAM, ESAM, METHODS, SAM, LookSAM
from esam.optim import reference

STEPS = 50


def esam_pair(beta, gamma):
    return (
        lambda base, model: ESAM(
            base,
            model,
            rho=0.3,
            beta=beta,
            gamma=gamma,
            seed=5,
        ),
        reference.ESAM(0.3, beta, gamma, torch.Generator().manual_seed(5)),
    )


PAIRS = {
    "sam": lambda: (lambda b, m: SAM(b, m, rho=0.3), lambda losses, w: reference.sam(losses, w, 0.3)),
    "asam": lambda: (lambda b, m: ASAM(b, m, rho=0.5), lambda losses, w: reference.asam(losses, w, 0.5, 0.01)),
    "looksam": lambda: (lambda b, m: LookSAM(b, m, rho=0.3, k=4, alpha=0.7), reference.LookSAM(0.3, 4, 0.7)),
    "fsam": lambda: (lambda b, m: METHODS["fsam"](b, m, rho=0.3, sigma=0.8), reference.FSAM(0.3, 0.8, 0.9)),
    "gsam": lambda: (
        lambda b, m: METHODS["gsam"](b, m, rho=0.3, alpha=0.4),
        lambda losses, w: reference.gsam(losses, w, 0.3, 0.4),
    ),
    "esam": lambda: esam_pair(0.6, 0.5),
    "esam-swp": lambda: esam_pair(0.3, 1),
    "esam-sds": lambda: esam_pair(1, 0.4),
}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


@pytest.mark.parametrize("name", PAIRS)
def test_fifty_steps_equal_the_papers_loops_to_1e_12(name):
    build, literal = PAIRS[name]()
    fast, slow = problem(), problem()
    optimizer, base = build(sgd(fast.model), fast.model), sgd(slow.model)
    batches = torch.randn(STEPS, 12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for batch in batches:
        fast.x = slow.x = batch
        optimizer.step(fast.closure)
        weights = list(slow.model.parameters())
        for weight, gradient in zip(weights, literal(slow.closure, weights), strict=True):
            weight.grad = gradient
        base.step()
        for p, q in zip(fast.model.parameters(), slow.model.parameters(), strict=True):
            assert (p - q).abs().max() < 1e-12


class Quadratic(nn.Module):
    """Losses a_i / 2 w^2, so everything can be worked out on paper."""

    def __init__(self, *weights):
        super().__init__()
        self.w = nn.ParameterList(nn.Parameter(torch.tensor(w, dtype=torch.float64)) for w in weights)

    def forward(self, a):
        return sum(a * w**2 / 2 for w in self.w)


def step_by_hand(build, a, *weights):
    model = Quadratic(*weights)
    optimizer = build(torch.optim.SGD(model.parameters(), lr=0.1), model)
    a = torch.tensor(a, dtype=torch.float64)
    loss = optimizer.step(lambda keep: model(a[keep]))
    return [float(w.detach()) for w in model.w], float(loss)


def test_sam_on_a_quadratic_is_the_step_worked_out_by_hand():
    # L = 2 (w1^2 + w2^2) / 2 at (3, 4): g = (6, 8), |g| = 10, eps = 0.5 (0.6, 0.8), gradient there 2 (3.3, 4.4)
    (w1, w2), loss = step_by_hand(lambda b, m: SAM(b, m, rho=0.5), [1.0, 3.0], 3.0, 4.0)
    assert w1 == pytest.approx(3 - 0.1 * 2 * 3.3, abs=1e-14)
    assert w2 == pytest.approx(4 - 0.1 * 2 * 4.4, abs=1e-14)
    assert loss == pytest.approx(2 * (9 + 16) / 2)


def test_asam_on_a_quadratic_is_the_step_worked_out_by_hand():
    # T = (3, 4), T g = (18, 32) for g = (6, 8), eps = 0.5 T^2 g / |T g|
    length = math.hypot(18, 32)
    (w1, w2), _ = step_by_hand(lambda b, m: ASAM(b, m, rho=0.5, eta=0.0), [1.0, 3.0], 3.0, 4.0)
    assert w1 == pytest.approx(3 - 0.2 * (3 + 0.5 * 54 / length), abs=1e-14)
    assert w2 == pytest.approx(4 - 0.2 * (4 + 0.5 * 128 / length), abs=1e-14)


def test_sds_on_a_quadratic_trains_on_the_steeper_sample():
    # the loss of a = 3 rises three times as much as that of a = 1, so B+ = {a = 3}
    (w,), loss = step_by_hand(
        lambda b, m: ESAM(
            b,
            m,
            rho=0.5,
            beta=1,
            gamma=0.5,
        ),
        [1.0, 3.0],
        2.0,
    )
    assert w == pytest.approx(2 - 0.1 * 3 * 2.5, abs=1e-14)
    assert loss == pytest.approx((1 + 3) / 2 * 4 / 2)  # the whole batch, at theta


@pytest.mark.parametrize("second_too", [True, False], ids=["both perturbed", "the first alone"])
def test_looksam_reuses_the_orthogonal_part_of_the_whole_gradient(second_too):
    # at (3, 4) with curvatures 1 and 3: g = (3, 12), g_s = g + H eps, eps along g in what is perturbed
    model = nn.ParameterList([nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in (3.0, 4.0)])
    w1, w2 = model
    base = torch.optim.SGD([{"params": [w1]}, {"params": [w2], "perturb": second_too}], lr=0.0)
    optimizer = LookSAM(base, model, rho=0.5, k=2, alpha=0.7)
    losses = lambda keep: ((w1**2 + 3 * w2**2) / 2).expand(2)[keep]  # noqa: E731
    optimizer.step(losses)
    length = math.hypot(3, 12)
    eps = (0.5 * 3 / length, 0.5 * 12 / length) if second_too else (0.5, 0.0)
    g_s = (3 + eps[0], 12 + 3 * eps[1])
    assert (float(w1.grad), float(w2.grad)) == pytest.approx(g_s, abs=1e-13)
    along = (3 * g_s[0] + 12 * g_s[1]) / length**2
    g_v = (g_s[0] - along * 3, g_s[1] - along * 12)
    optimizer.step(losses)
    factor = 0.7 * length / math.hypot(*g_v)
    assert (float(w1.grad), float(w2.grad)) == pytest.approx((3 + factor * g_v[0], 12 + factor * g_v[1]), abs=1e-12)


def m_sharp_gradient(p):
    """Return SAM's gradient at rho 0.3 of ten samples, in groups of four."""
    weights = list(p.model.parameters())
    total = [torch.zeros_like(w) for w in weights]
    for group in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9]):
        part = copy.copy(p)
        part.x, part.y = p.x[group], p.y[group]
        for t, g in zip(total, reference.sam(part.closure, weights, 0.3), strict=True):
            t += g * len(group) / 10
    return total


def test_m_sharpness_perturbs_each_group_by_its_own_gradient():
    p = problem(batch=10)
    q = copy.deepcopy(p)
    SAM(sgd(p.model), p.model, rho=0.3, m=4).step(p.closure, batch_size=10)
    for w, t in zip(q.model.parameters(), m_sharp_gradient(q), strict=True):
        w.grad = t
    sgd(q.model).step()
    for a, b in zip(p.weights, q.weights, strict=True):
        assert (a - b).abs().max() < 1e-13
