"""Does each method step by the gradient that its paper names, and reduce to SAM or to the base where it should?

By its literal twin in ``esam.optim.reference``, by numbers worked out on paper, and by what it must equal where a
setting is at its end.
"""

import itertools
import math
from collections import Counter

import pytest
import torch
from conftest import EVERY_ROW, assert_same, mlp, normalised, problem
from torch import nn

from esam import ASAM, ESAM, METHODS, SAM, LookSAM, SliceSAM
from esam.optim import reference
from experiments.methods.ascent_part import AscentPart
from experiments.methods.noise import RandomPerturbation

ROUNDING = 1e-12
"""Float64: sums over twelve samples in another order differ by some 1e-16 a step."""


def sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3)


def trained(name, steps=4, build=mlp, base=sgd, **settings):
    """Return the weights after some steps on one batch, and the sizes of the batches that ran."""
    p = problem(build)
    row = METHODS[name] if isinstance(name, str) else name
    optimizer = row(base(p.model), p.model, seed=3, **settings)
    for _ in range(steps):
        torch.manual_seed(0)  # dropout
        p.step(optimizer)
    return p.weights, p.calls


def by_hand(gradient_of, steps=4):
    """Return the weights after steps by ``gradient_of(losses, weights, step)``."""
    p = problem()
    base, weights = sgd(p.model), list(p.model.parameters())
    for step in range(steps):
        for w, g in zip(weights, gradient_of(p.closure, weights, step), strict=True):
            w.grad = g
        base.step()
    return p.weights


# Twins and numbers by hand --------------------------------------------------------------------------------------------


PAIRS = {
    "sam": lambda: (lambda b, m: SAM(b, m, rho=0.3), lambda losses, w: reference.sam(losses, w, 0.3)),
    "asam": lambda: (lambda b, m: ASAM(b, m, rho=0.5), lambda losses, w: reference.asam(losses, w, 0.5, 0.01)),
    "looksam": lambda: (lambda b, m: LookSAM(b, m, rho=0.3, k=4, alpha=0.7), reference.LookSAM(0.3, 4, 0.7)),
    "fsam": lambda: (lambda b, m: METHODS["fsam"](b, m, rho=0.3, sigma=0.8), reference.FSAM(0.3, 0.8, 0.9)),
    "gsam": lambda: (
        lambda b, m: METHODS["gsam"](b, m, rho=0.3, alpha=0.4),
        lambda losses, w: reference.gsam(losses, w, 0.3, 0.4),
    ),
}
"""ESAM's is compared in test_properties.py, for any share of tensors and samples."""


@pytest.mark.parametrize("name", PAIRS)
def test_fifty_steps_equal_the_papers_loops_to_1e_12(name):
    build, literal = PAIRS[name]()
    fast, slow = problem(), problem()
    optimizer, base = build(sgd(fast.model), fast.model), sgd(slow.model)
    weights = list(slow.model.parameters())
    for x in torch.randn(50, 12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)):
        fast.x = slow.x = x
        fast.step(optimizer)
        for weight, gradient in zip(weights, literal(slow.closure, weights), strict=True):
            weight.grad = gradient
        base.step()
        assert_same(fast.weights, slow.weights, ROUNDING)


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
    (w,), loss = step_by_hand(lambda b, m: ESAM(b, m, rho=0.5, beta=1, gamma=0.5), [1.0, 3.0], 2.0)
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


def test_looksam_reuses_nothing_for_a_tensor_that_rests():
    model = nn.ParameterList([nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in (3.0, 4.0)])
    optimizer = LookSAM(torch.optim.SGD(model.parameters(), lr=0.0), model, rho=0.5, k=2, alpha=0.7)
    optimizer.step(lambda keep: ((model[0] ** 2 + 3 * model[1] ** 2) / 2).expand(2)[keep])
    optimizer.step(lambda keep: (model[0] ** 2 / 2).expand(2)[keep])
    # in one dimension the part to reuse is a sign, of -1: the second tensor's curvature is the higher one
    assert float(model[0].grad) == pytest.approx(3 - 0.7 * 3, abs=1e-12) and model[1].grad is None


# Reductions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in EVERY_ROW if "rho" in METHODS[n].options()])
def test_rho_zero_is_the_base_optimizer_bit_for_bit(name):
    assert_same(trained(name, rho=0.0)[0], trained("base")[0])


def test_the_row_base_is_the_plain_loop_bit_for_bit_whatever_radius_its_groups_carry():
    p, q = problem(), problem()
    optimizer = METHODS["base"](torch.optim.SGD([{"params": p.model.parameters(), "sam_rho": 1.0}], lr=0.1), p.model)
    plain = torch.optim.SGD(q.model.parameters(), lr=0.1)
    for _ in range(3):
        p.step(optimizer)
        plain.zero_grad()
        q.loss_of(q.x, q.y).mean().backward()
        plain.step()
    assert_same(p.weights, q.weights)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("esam", {"beta": 1.0, "gamma": 1.0}), ("looksam", {"k": 1}), ("slicesam", {"share": 1.0}),
     (AscentPart, {"share": 1.0})],
)  # fmt: skip
def test_on_the_whole_batch_and_in_every_step_it_is_sam(name, settings):
    assert_same(trained(name, rho=0.3, **settings)[0], trained("sam", rho=0.3)[0], ROUNDING)


# SliceSAM and the part of a batch -------------------------------------------------------------------------------------


class Recording:
    """A problem whose batch is its own indices, so that it knows which samples ran."""

    def __init__(self, batch=12, build=mlp):
        self.p, self.calls = problem(build, batch=batch), []

    def loss_of(self, rows):
        if torch.is_grad_enabled():
            self.calls.append(rows)
        return self.p.closure(rows)

    def step(self, optimizer):
        return optimizer.step(self.loss_of, torch.arange(len(self.p.x)))


def test_a_slices_step_is_the_batchs_gradient_and_the_slices_correction():
    r = Recording()
    optimizer = SliceSAM(sgd(r.p.model), r.p.model, rho=0.3, share=0.25, seed=3)
    for _ in range(3):
        r.step(optimizer)
    slices = r.calls[::3]
    assert [len(call) for call in r.calls] == [3, 9, 3] * 3  # the slice, the rest, the slice at theta + eps
    assert all(torch.equal(first, again) for first, again in zip(slices, r.calls[2::3], strict=True))
    assert not all(torch.equal(slices[0], other) for other in slices[1:])

    def gradient(losses, weights, step):
        whole, part = reference.gradient(losses, weights), reference.gradient(losses, weights, slices[step])
        eps = [0.3 * g / reference.norm(part) for g in part]
        moved = reference.at_perturbed(losses, weights, eps, lambda: slices[step])
        return [b + m - s for b, m, s in zip(whole, moved, part, strict=True)]

    assert_same(r.p.weights, by_hand(gradient, 3), ROUNDING)


def test_every_slice_is_as_likely_so_that_the_mean_of_all_is_sam_with_groups_of_their_size():
    """By the formula above, as the mean of g_S over all S is g_B."""
    r, drawn = Recording(batch=6), 600
    optimizer = SliceSAM(torch.optim.SGD(r.p.model.parameters(), lr=0.0), r.p.model, rho=0.3, share=1 / 3, seed=0)
    for _ in range(drawn):
        r.step(optimizer)
    counts = Counter(tuple(call.tolist()) for call in r.calls[::3])
    assert set(counts) == set(itertools.combinations(range(6), 2))
    # n draws of 15 pairs, each with a deviation of sqrt(n / 15)
    assert all(abs(count - drawn / 15) < 4 * (drawn / 15) ** 0.5 for count in counts.values())


@pytest.mark.parametrize(("share", "moving"), [(0.25, 9), (0.75, 9)])
def test_only_the_many_samples_move_the_running_statistics(share, moving):
    r = Recording(build=normalised)
    optimizer = SliceSAM(sgd(r.p.model), r.p.model, rho=0.3, share=share, seed=3)
    twin = problem(normalised)
    torch.manual_seed(5)
    r.step(optimizer)
    rows = next(call for call in r.calls if len(call) == moving)
    state = twin.model[5].num_batches_tracked.clone()
    twin.closure(rows)
    assert r.p.model[1].num_batches_tracked == state + 1
    assert torch.equal(r.p.model[1].running_mean, twin.model[1].running_mean)  # before any dropout


def test_the_base_on_a_part_steps_by_the_gradient_of_that_part_alone():
    r = Recording()
    optimizer = METHODS["base-part"](sgd(r.p.model), r.p.model, gamma=0.25, seed=3)
    for _ in range(3):
        r.step(optimizer)
    assert [len(call) for call in r.calls] == [3, 3, 3]
    assert_same(r.p.weights, by_hand(lambda losses, w, step: reference.gradient(losses, w, r.calls[step]), 3), ROUNDING)


def test_an_ascent_on_a_part_takes_eps_from_it_and_descends_with_all():
    r = Recording()
    optimizer = AscentPart(sgd(r.p.model), r.p.model, rho=0.3, share=0.25, seed=3)
    for _ in range(3):
        r.step(optimizer)
    assert [len(call) for call in r.calls] == [3, 12] * 3

    def gradient(losses, weights, step):
        part = reference.gradient(losses, weights, r.calls[2 * step])
        return reference.at_perturbed(losses, weights, [0.3 * g / reference.norm(part) for g in part])

    assert_same(r.p.weights, by_hand(gradient, 3), ROUNDING)


# One pass, some tensors, some steps, an average -----------------------------------------------------------------------


def test_sam_on_moves_the_norm_layers_alone():
    p = problem(normalised)
    optimizer = METHODS["sam-on"](sgd(p.model), p.model)
    _, eps = p.visited(optimizer)
    norms = [isinstance(m, nn.BatchNorm1d) for m in p.model.modules() for _ in m.parameters(recurse=False)]
    assert [bool(e.any()) for e in eps] == norms
    assert reference.norm(eps) == pytest.approx(0.5, rel=1e-9)
    with pytest.raises(ValueError, match="norm layers"):
        p = problem()
        p.step(METHODS["sam-on"](sgd(p.model), p.model))


def test_ae_sam_pays_where_the_squared_norm_is_above_its_running_mean():
    p = problem()
    optimizer = METHODS["ae-sam"](sgd(p.model), p.model, threshold=0.0)
    squares, paid = [], []
    for _ in range(12):
        g = reference.gradient(p.closure, list(p.model.parameters()))
        squares.append(reference.norm(g) ** 2)
        p.calls.clear()
        p.step(optimizer)
        paid.append(len(p.calls) == 2)
    mean, expected = None, []
    for square in squares:
        mean = square if mean is None else 0.9 * mean + 0.1 * square
        expected.append(square >= mean)
    assert paid == expected and len(set(paid)) == 2


@pytest.mark.parametrize("base", ["SGD", "AdamW"])
def test_momentum_sam_takes_its_one_gradient_at_a_point_against_the_momentum(base):
    p = problem()
    made = sgd(p.model) if base == "SGD" else torch.optim.AdamW(p.model.parameters(), lr=0.01)
    optimizer = METHODS["msam"](made, p.model, rho=0.3)
    p.step(optimizer)
    key = "momentum_buffer" if base == "SGD" else "exp_avg"
    weights = list(p.model.parameters())
    v = [optimizer.state[w][key].clone() for w in weights]
    expected = reference.at_perturbed(p.closure, weights, [-0.3 * v_n / reference.norm(v) for v_n in v])
    p.calls.clear()
    p.step(optimizer)
    assert len(p.calls) == 1
    assert_same([w.grad for w in weights], expected, ROUNDING)


def test_random_noise_has_the_length_of_a_share_of_each_filter():
    p = problem()
    optimizer = RandomPerturbation(torch.optim.SGD(p.model.parameters(), lr=0.0), p.model, rho=0.1, seed=0)
    squares = [torch.zeros(len(w)) for w in p.weights]
    for _ in range(400):
        for total, e in zip(squares, p.visited(optimizer)[0], strict=True):
            total += e.flatten(1).square().sum(1) / 400 if e.dim() > 1 else e.square().sum() / 400
    for total, w in zip(squares, p.weights, strict=True):
        length = w.flatten(1).norm(dim=1) if w.dim() > 1 else w.norm().expand(len(w))
        assert torch.allclose(total.sqrt(), (0.1 * length).float(), rtol=0.15)  # n = 400 draws of a chi-squared


def test_the_average_is_that_of_the_weights_and_is_there_in_its_block_alone():
    p = problem()
    optimizer = METHODS["base-ema"](sgd(p.model), p.model, decay=0.5)
    average = None
    for t in range(4):
        p.step(optimizer)
        decay = min(0.5, (1 + t) / (10 + t))
        average = p.weights if average is None else [decay * a + (1 - decay) * w for a, w in zip(average, p.weights)]  # noqa: B905
        weights = p.weights
        with optimizer.evaluation_weights():
            assert_same(p.weights, average, 1e-14)
        assert_same(p.weights, weights)
