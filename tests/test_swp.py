"""Stochastic weight perturbation: what is drawn, what is computed, and where it converges."""

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import mlp, problem
from torch import nn

from esam import ESAM, SAM
from esam.optim.mask import Mask, independent, suffix


def perturbations(optimizer, closure, weights, steps):
    """Yield eps of each step, read off the weights that the second pass sees."""
    for _ in range(steps):
        theta = [w.detach().clone() for w in weights]
        seen = []

        def watching(keep, seen=seen):
            seen.append([w.detach().clone() for w in weights])
            return closure(keep)

        optimizer.step(watching)
        yield [a - t for a, t in zip(seen[-1], theta, strict=True)]


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors])


P6 = 0.5 + 0.5**6 / 6
"""The probability that one of six tensors is drawn at beta = 0.5: by its own draw, or by force where all miss."""


@pytest.mark.parametrize("mask", ["independent", "suffix"])
def test_over_500_masks_the_mean_perturbation_of_each_tensor_is_sams(mask):
    p = problem()
    weights = list(p.model.parameters())
    still = lambda: torch.optim.SGD(weights, lr=0.0)  # noqa: E731
    (sam,) = perturbations(SAM(still(), p.model, rho=0.05), p.closure, weights, 1)
    optimizer = ESAM(still(), p.model, rho=0.05, beta=0.6, gamma=1, mask=mask, seed=0)
    optimizer.step(p.closure)  # takes all of them
    mean = [torch.zeros_like(w) for w in weights]
    for eps in perturbations(optimizer, p.closure, weights, 500):
        mean = [a + e / 500 for a, e in zip(mean, eps, strict=True)]
    for a, b in zip(mean, sam, strict=True):
        ratio = float((a * b).sum() / (b * b).sum())
        torch.testing.assert_close(a, ratio * b, rtol=1e-9, atol=1e-12)
        # drawn with probability p >= 0.3 and divided by it: a variance of (1 - p) / p a step
        assert abs(ratio - 1) < 4 * (0.7 / 0.3 / 500) ** 0.5


def test_the_released_norm_is_always_rho_over_the_probability_of_a_draw():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.1), p.model, rho=0.05, beta=0.5, gamma=1, norm="selected", seed=0)
    for eps in perturbations(optimizer, p.closure, weights, 10):
        assert flat(eps).norm() == pytest.approx(0.05 / P6, rel=1e-9)


def test_each_tensor_is_drawn_with_probability_beta_and_not_drawn_together():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.0), p.model, beta=0.6, gamma=1, seed=0)
    steps = list(perturbations(optimizer, p.closure, weights, 401))
    drawn = torch.tensor([[bool(e.any()) for e in eps] for eps in steps], dtype=torch.float64)
    assert drawn[0].all()  # so that each tensor has a norm
    share = drawn[1:].mean(0)
    assert ((share - 0.6).abs() < 4 * (0.24 / 400) ** 0.5).all()
    off_diagonal = torch.corrcoef(drawn[1:].T)[~torch.eye(len(weights), dtype=torch.bool)]
    assert off_diagonal.abs().max() < 4 / 400**0.5


def test_a_tensor_that_was_not_drawn_counts_with_its_last_norm():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.0), p.model, rho=0.05, beta=0.5, gamma=1, seed=0)
    gradient = torch.autograd.grad(p.closure(slice(None)).mean(), weights)
    drawn = []
    for step, eps in enumerate(perturbations(optimizer, p.closure, weights, 10)):
        scale = 0.05 / flat(gradient).norm() / (1 if step == 0 else P6)
        for e, g in zip(eps, gradient, strict=True):
            if e.any():
                assert torch.allclose(e, scale * g, rtol=1e-9, atol=1e-15)
        drawn.append(sum(bool(e.any()) for e in eps))
    assert drawn[0] == 6
    assert min(drawn) < 6


def test_at_least_one_tensor_is_perturbed_however_small_beta():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.0), p.model, beta=1e-9, gamma=1, seed=0)
    steps = [sum(bool(e.any()) for e in eps) for eps in perturbations(optimizer, p.closure, weights, 12)]
    assert steps == [len(weights)] + [1] * 11


class Counted(torch.autograd.Function):
    """The identity, counting the backward passes through it."""

    count = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Counted.count += 1
        return gradient


def test_backward_stops_at_the_earliest_drawn_tensor():
    torch.manual_seed(0)
    first, last = nn.Linear(4, 4), nn.Linear(4, 2)
    model = nn.Sequential(first, last)
    base = torch.optim.SGD([{"params": first.parameters(), "perturb": False}, {"params": last.parameters()}], lr=0.1)
    optimizer = ESAM(base, model, beta=0.5, gamma=1)
    x = torch.randn(5, 4)
    Counted.count = 0
    optimizer.step(lambda keep: last(Counted.apply(first(x[keep]))).pow(2).sum(1))
    assert Counted.count == 1  # in the second pass only


def test_gradients_of_tensors_not_drawn_are_never_computed():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.1), p.model, beta=0.4, gamma=1, seed=1)
    optimizer.step(p.closure)
    computed = []
    handles = [w.register_hook(lambda g, i=i: computed.append(i)) for i, w in enumerate(weights)]
    for eps in perturbations(optimizer, p.closure, weights, 5):
        drawn = [i for i, e in enumerate(eps) if e.any()]
        assert sorted(computed[: len(drawn)]) == drawn
        assert sorted(computed[len(drawn) :]) == list(range(len(weights)))
        computed.clear()
    for handle in handles:
        handle.remove()


def test_a_group_added_later_is_drawn_at_its_first_step():
    p = problem(mlp)
    extra = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = ESAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, beta=1e-9, gamma=1, seed=0)
    closure = lambda keep: p.closure(keep) + (extra**2).sum()  # noqa: E731
    optimizer.step(closure)
    optimizer.add_param_group({"params": [extra]})
    (eps,) = perturbations(optimizer, closure, [extra], 1)
    assert eps[0].any()


def test_a_drawn_group_norm_in_channels_last_does_not_crash_the_process():
    """torch's backward does, when the input's gradient is not wanted; a crash here ends the test run."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(8 * 16, 3)).double().to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    x, y = torch.randn(16, 3, 8, 8, dtype=torch.float64), torch.randint(0, 3, (16,))
    for net, inputs in ((model, x.to(memory_format=torch.channels_last)), (twin, x)):
        optimizer = ESAM(torch.optim.SGD(net.parameters(), lr=0.1), net, beta=0.2, gamma=1, seed=0)
        for _ in range(12):
            optimizer.step(lambda keep, n=net, i=inputs: F.cross_entropy(n(i[keep]), y[keep], reduction="none"))
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("draw", [independent, suffix])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.6, 0.9])
@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_each_tensor_is_drawn_as_often_as_the_mask_states_and_one_of_them_always(count, beta, draw):
    generator = torch.Generator().manual_seed(0)
    draws = [draw(count, beta, generator) for _ in range(2000)]
    assert all(d.picks for d in draws)
    stated = torch.tensor(draws[0].probabilities, dtype=torch.float64)
    seen = torch.tensor([sum(i in d.picks for d in draws) for i in range(count)]) / len(draws)
    assert ((seen - stated).abs() < 4.5 * (stated * (1 - stated) / len(draws)).sqrt() + 1e-9).all()
    assert beta - 1e-6 <= stated.mean() <= beta + 1 / count
    if draw is suffix:
        assert all(d.picks == list(range(count - len(d.picks), count)) for d in draws)
        assert stated.min() >= max(beta / 2, 2 * beta - 1)  # no radius is stretched much


def test_a_suffix_lets_backward_stop_early():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(6)]
    model = nn.Sequential(*layers)
    optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.1), model, beta=0.3, gamma=1, mask="suffix", seed=0)
    x = torch.randn(5, 4)

    def closure(keep):
        h = x[keep]
        for layer in layers:
            h = Counted.apply(layer(h))
        return h.pow(2).sum(1)

    counts = []
    for _ in range(40):
        Counted.count = 0
        optimizer.step(closure)
        counts.append(Counted.count - 6)  # the second pass goes through all six
    assert counts[0] == 6
    assert min(counts) == 1
    assert 1.2 < sum(counts[1:]) / 39 < 3.6  # 0.3 of 6 layers is 1.8, and the last is always there


class Drawn:
    """A mask that draws what it is told to; the first step takes every tensor, to learn its norm."""

    picks = ()

    def __call__(self, count, beta, generator):
        return Mask(list(self.picks), [0.5] * count)


def test_requires_grad_is_the_users_own_in_every_pass():
    """A resting weight may carry hooks, or be read by the closure: taking its flag away broke such models."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), torch.randn(6, 4)
    model[0].bias.requires_grad_(False)
    optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.1), model, mask=(mask := Drawn()), seed=0)
    seen = []

    def closure(keep):
        seen.append([p.requires_grad for p in model.parameters()])
        hidden = model[0](x[keep])
        if torch.is_grad_enabled():
            hidden.register_hook(lambda gradient: None)
        return model[1](hidden).square().sum(1)

    optimizer.step(closure)
    mask.picks = (2,)
    optimizer.step(closure)
    assert seen == [[True, False, True, True]] * 6


@pytest.mark.parametrize("ranking", ["exact", "aligned"])
def test_a_draw_of_tensors_that_the_batch_does_not_use_perturbs_nothing(ranking):
    """A branch of the model may rest in a batch; the step is then the base's own, on the kept samples."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"unused": nn.Linear(4, 3), "used": nn.Linear(4, 3)}).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ESAM(base, model, gamma=0.5, seed=0, ranking=ranking, mask=(mask := Drawn()))
    optimizer.step(lambda keep: (model["used"](x[keep]) + model["unused"](x[keep])).square().sum(1))
    mask.picks = (0, 1)
    kept = []

    def closure(keep):
        kept.append(keep)
        assert all(torch.equal(p, t) for p, t in zip(model.parameters(), theta, strict=True))
        return model["used"](x[keep]).square().sum(1)

    theta = [p.detach().clone() for p in model.parameters()]
    used = list(model["used"].parameters())
    optimizer.step(closure)
    with torch.no_grad():
        for p, t in zip(model.parameters(), theta, strict=True):
            p.copy_(t)
    assert len(kept[-1]) == 3
    wanted = torch.autograd.grad(closure(kept[-1]).mean(), used)
    for p, g in zip(used, wanted, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0, atol=1e-12)
    assert all(p.grad is None for p in model["unused"].parameters())
