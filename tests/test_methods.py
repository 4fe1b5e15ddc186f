"""Does each method step by the gradient that its paper names, and reduce to SAM or to the base where it should?

By its literal twin in ``esam.optim.reference``, by numbers worked out on paper, and by what it must equal where a
setting is at its end.
"""

import functools
import itertools
import math
from collections import Counter

import pytest
import torch
from conftest import assert_same, mlp, normalised, problem
from torch import nn

from esam import ASAM, ESAM, METHODS, SAM, LookSAM, SliceSAM
from esam.optim import reference
from experiments.methods.ascent_part import AscentPart
from experiments.methods.noise import RandomPerturbation

ROUNDING = 1e-12
"""Float64: sums over twelve samples in another order differ by some 1e-16 a step."""


def sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3)


def trained(row, group=None, **settings):
    """Return the weights after some steps on one batch."""
    p = problem()
    optimizer = row(sgd(p.model), p.model, seed=3, **settings)
    optimizer.param_groups[0].update(group or {})
    for _ in range(4):
        p.step(optimizer)
    return p.weights


def by_hand(gradient_of, steps):
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
    "sam": ({"rho": 0.3}, lambda: lambda losses, w: reference.sam(losses, w, 0.3)),
    "asam": ({"rho": 0.5}, lambda: lambda losses, w: reference.asam(losses, w, 0.5, 0.01)),
    "looksam": ({"rho": 0.3, "k": 4, "alpha": 0.7}, lambda: reference.LookSAM(0.3, 4, 0.7)),
    "fsam": ({"rho": 0.3, "sigma": 0.8}, lambda: reference.FSAM(0.3, 0.8, 0.9)),
    "gsam": ({"rho": 0.3, "alpha": 0.4}, lambda: lambda losses, w: reference.gsam(losses, w, 0.3, 0.4)),
    **{
        f"esam, {beta}, {gamma}": (
            {"rho": 0.3, "beta": beta, "gamma": gamma, "seed": 3},
            lambda beta=beta, gamma=gamma: reference.ESAM(0.3, beta, gamma, torch.Generator().manual_seed(3)),
        )
        for beta, gamma in ((0.1, 1), (1, 0.25), (0.5, 0.6))
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_fifty_steps_equal_the_papers_loops_to_1e_12(name):
    settings, literal = PAIRS[name][0], PAIRS[name][1]()
    fast, slow = problem(), problem()
    optimizer, base = METHODS[name.split(",")[0]](sgd(fast.model), fast.model, **settings), sgd(slow.model)
    weights = list(slow.model.parameters())
    for x in torch.randn(50, 12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)):
        fast.x = slow.x = x
        fast.step(optimizer)
        for weight, gradient in zip(weights, literal(slow.closure, weights), strict=True):
            weight.grad = gradient
        base.step()
        assert_same(fast.weights, slow.weights, ROUNDING)


LENGTH = math.hypot(18, 32)
BY_HAND = {
    # g = (6, 8), |g| = 10, eps = 0.5 (0.6, 0.8), gradient there 2 (3.3, 4.4)
    "sam": (functools.partial(SAM, rho=0.5), (3, 4), (3 - 0.2 * 3.3, 4 - 0.2 * 4.4)),
    # T = (3, 4), T g = (18, 32), eps = 0.5 T^2 g / |T g|
    "asam": (
        functools.partial(ASAM, rho=0.5, eta=0.0),
        (3, 4),
        (3 - 0.2 * (3 + 0.5 * 54 / LENGTH), 4 - 0.2 * (4 + 0.5 * 128 / LENGTH)),
    ),
    # the loss of a = 3 rises three times as much as that of a = 1, so B+ = {a = 3}
    "sds": (functools.partial(ESAM, rho=0.5, beta=1, gamma=0.5), (2,), (2 - 0.1 * 3 * 2.5,)),
}


@pytest.mark.parametrize(("build", "theta", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_a_step_on_a_quadratic_is_the_one_worked_out_by_hand(build, theta, expected):
    """Two samples with losses a / 2 |w|^2, a = 1 and 3, at a rate of 0.1."""
    model = nn.ParameterList([torch.tensor(float(w), dtype=torch.float64) for w in theta])
    optimizer = build(torch.optim.SGD(model.parameters(), lr=0.1), model)
    loss = optimizer.step(lambda a: sum(a * w**2 / 2 for w in model), torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert [float(w.detach()) for w in model] == pytest.approx(expected, abs=1e-14)
    assert float(loss) == pytest.approx(sum(w * w for w in theta))  # of the whole batch, at theta


def two_weights(**second):
    """Return two weights, and LookSAM on them; the second's group may have settings of its own."""
    w1, w2 = model = nn.ParameterList([torch.tensor(v, dtype=torch.float64) for v in (3.0, 4.0)])
    base = torch.optim.SGD([{"params": [w1]}, {"params": [w2], **second}], lr=0.0)
    return w1, w2, LookSAM(base, model, rho=0.5, k=2, alpha=0.7)


def test_looksam_reuses_the_orthogonal_part_of_the_whole_gradient_though_a_tensor_is_not_perturbed():
    # at (3, 4) with curvatures 1 and 3: g = (3, 12), g_s = g + H eps, eps = (0.5, 0)
    w1, w2, optimizer = two_weights(perturb=False)
    losses = lambda keep: ((w1**2 + 3 * w2**2) / 2).expand(2)[keep]  # noqa: E731
    optimizer.step(losses)
    length = math.hypot(3, 12)
    g_s = (3.5, 12.0)
    assert (float(w1.grad), float(w2.grad)) == pytest.approx(g_s, abs=1e-13)
    along = (3 * g_s[0] + 12 * g_s[1]) / length**2
    g_v = (g_s[0] - along * 3, g_s[1] - along * 12)
    optimizer.step(losses)
    factor = 0.7 * length / math.hypot(*g_v)
    assert (float(w1.grad), float(w2.grad)) == pytest.approx((3 + factor * g_v[0], 12 + factor * g_v[1]), abs=1e-12)


def test_looksam_reuses_nothing_for_a_tensor_that_rests():
    w1, w2, optimizer = two_weights()
    optimizer.step(lambda keep: ((w1**2 + 3 * w2**2) / 2).expand(2)[keep])
    optimizer.step(lambda keep: (w1**2 / 2).expand(2)[keep])
    # in one dimension the part to reuse is a sign, of -1: the second tensor's curvature is the higher one
    assert float(w1.grad) == pytest.approx(3 - 0.7 * 3, abs=1e-12) and w2.grad is None


# Reductions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["base", *(n for n in METHODS if "rho" in METHODS[n].options())])
def test_rho_zero_is_the_plain_loop_bit_for_bit(name):
    plain = by_hand(lambda losses, weights, _: reference.gradient(losses, weights), 4)
    how = {"group": {"sam_rho": 1.0}} if name == "base" else {"rho": 0.0}  # whatever radius the base's groups carry
    assert_same(trained(METHODS[name], **how), plain)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (ESAM, {"beta": 1.0, "gamma": 1.0}),
        (LookSAM, {"k": 1}),
        (SliceSAM, {"share": 1.0}),
        (AscentPart, {"share": 1.0}),
    ],
)
def test_on_the_whole_batch_and_in_every_step_it_is_sam(method, settings):
    assert_same(trained(method, rho=0.3, **settings), trained(SAM, rho=0.3), ROUNDING)


# SliceSAM and the part of a batch -------------------------------------------------------------------------------------


class Recording:
    """A problem whose batch is its own indices, so that it knows which samples ran in its steps."""

    def __init__(self, method, steps, batch=12, build=mlp, **settings):
        self.p, self.calls = problem(build, batch=batch), []
        self.optimizer = method(settings.pop("base", sgd)(self.p.model), self.p.model, seed=3, **settings)
        torch.manual_seed(5)
        for _ in range(steps):
            self.optimizer.step(self.loss_of, torch.arange(batch))
        self.sizes = [len(call) for call in self.calls]

    def loss_of(self, rows):
        if torch.is_grad_enabled():
            self.calls.append(rows)
        return self.p.closure(rows)


def eps_of(part):
    return [0.3 * g / reference.norm(part) for g in part]


def test_a_slices_step_is_the_batchs_gradient_and_the_slices_correction():
    r = Recording(SliceSAM, 3, rho=0.3, share=0.25)
    slices = r.calls[::3]
    assert r.sizes == [3, 9, 3] * 3  # the slice, the rest, the slice at theta + eps
    assert all(torch.equal(first, again) for first, again in zip(slices, r.calls[2::3], strict=True))
    assert not all(torch.equal(slices[0], other) for other in slices[1:])

    def gradient(losses, weights, step):
        whole, part = reference.gradient(losses, weights), reference.gradient(losses, weights, slices[step])
        moved = reference.at_perturbed(losses, weights, eps_of(part), lambda: slices[step])
        return [b + m - s for b, m, s in zip(whole, moved, part, strict=True)]

    assert_same(r.p.weights, by_hand(gradient, 3), ROUNDING)


def test_every_slice_is_as_likely_so_that_the_mean_of_all_is_sam_with_groups_of_their_size():
    """By the formula above, as the mean of g_S over all S is g_B."""
    drawn = 600
    r = Recording(SliceSAM, drawn, batch=6, base=functools.partial(sgd, lr=0.0), rho=0.3, share=1 / 3)
    counts = Counter(tuple(call.tolist()) for call in r.calls[::3])
    assert set(counts) == set(itertools.combinations(range(6), 2))
    # n draws of 15 pairs, each with a deviation of sqrt(n / 15)
    assert all(abs(count - drawn / 15) < 4 * (drawn / 15) ** 0.5 for count in counts.values())


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_only_the_many_samples_move_the_running_statistics(share):
    r, twin = Recording(SliceSAM, 1, build=normalised, share=share), problem(normalised)
    twin.closure(next(call for call in r.calls if len(call) == 9))
    norm, expected = r.p.model[1], twin.model[1]  # before any dropout
    assert norm.num_batches_tracked == 1
    assert torch.equal(norm.running_mean, expected.running_mean)


def test_the_base_on_a_part_steps_by_the_gradient_of_that_part_alone():
    r = Recording(METHODS["base-part"], 3, gamma=0.25)
    assert r.sizes == [3, 3, 3]
    assert_same(r.p.weights, by_hand(lambda losses, w, step: reference.gradient(losses, w, r.calls[step]), 3), ROUNDING)


def test_an_ascent_on_a_part_takes_eps_from_it_and_descends_with_all():
    r = Recording(AscentPart, 3, rho=0.3, share=0.25)
    assert r.sizes == [3, 12] * 3

    def gradient(losses, weights, step):
        part = reference.gradient(losses, weights, r.calls[2 * step])
        return reference.at_perturbed(losses, weights, eps_of(part))

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
        p = problem(lambda dtype: nn.Linear(6, 3, dtype=dtype))
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
