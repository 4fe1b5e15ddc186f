"""Stochastic weight perturbation: what is drawn, what is computed, and where it converges."""

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import mlp, problem
from torch import nn

from esam import ESAM, SAM
from esam.optim.mask import Mask, suffix


def small_cnn(dtype=torch.float32):
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.BatchNorm2d(16),
    )
    return nn.Sequential(
        *layers,
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(32),
        nn.ReLU(),
        nn.Linear(32, 10),
    ).to(dtype)


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


def image_problem():
    torch.manual_seed(0)
    model = small_cnn()
    x, y = torch.randn(32, 3, 12, 12), torch.randint(0, 10, (32,))
    model(x)
    weights = list(model.parameters())
    return model, weights, lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none")


@pytest.mark.parametrize("choose", ["independent", "suffix"])
def test_over_2000_masks_the_mean_perturbation_is_sams(choose):
    model, weights, closure = image_problem()
    still = lambda: torch.optim.SGD(model.parameters(), lr=0.0)  # noqa: E731
    (sam,) = perturbations(SAM(still(), model, rho=0.05), closure, weights, 1)
    optimizer = ESAM(still(), model, rho=0.05, beta=0.6, gamma=1, choose=choose, seed=0)
    mean = sum(flat(eps).double() for eps in perturbations(optimizer, closure, weights, 2000)) / 2000
    target = flat(sam).double()
    assert F.cosine_similarity(mean, target, dim=0) > 0.99
    assert mean.norm() == pytest.approx(float(target.norm()), rel=0.05)


def test_the_released_norm_is_always_rho_over_beta():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(
        torch.optim.SGD(weights, lr=0.1),
        p.model,
        rho=0.05,
        beta=0.5,
        gamma=1,
        mask="independent",
        norm="selected",
        seed=0,
    )
    for eps in perturbations(optimizer, p.closure, weights, 10):
        assert flat(eps).norm() == pytest.approx(0.1, rel=1e-9)


def test_each_tensor_is_drawn_with_probability_beta_and_not_drawn_together():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.0), p.model, beta=0.6, gamma=1, mask="independent", seed=0)
    steps = list(perturbations(optimizer, p.closure, weights, 801))
    drawn = torch.tensor([[bool(e.any()) for e in eps] for eps in steps], dtype=torch.float64)
    assert drawn[0].all()  # so that each tensor has a norm
    share = drawn[1:].mean(0)
    assert ((share - 0.6).abs() < 4 * (0.24 / 800) ** 0.5).all()
    off_diagonal = torch.corrcoef(drawn[1:].T)[~torch.eye(len(weights), dtype=torch.bool)]
    assert off_diagonal.abs().max() < 4 / 800**0.5


def test_a_tensor_that_was_not_drawn_counts_with_its_last_norm():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.0), p.model, rho=0.05, beta=0.5, gamma=1, mask="independent", seed=0)
    gradient = torch.autograd.grad(p.closure(slice(None)).mean(), weights)
    for step, eps in enumerate(perturbations(optimizer, p.closure, weights, 10)):
        scale = 0.05 / flat(gradient).norm() * (1 if step == 0 else 2)
        for e, g in zip(eps, gradient, strict=True):
            if e.any():
                assert torch.allclose(e, scale * g, rtol=1e-9, atol=1e-15)


def test_at_least_one_tensor_is_perturbed_however_small_beta():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.0), p.model, beta=1e-9, gamma=1, mask="independent", seed=0)
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
    optimizer = ESAM(base, model, beta=0.5, gamma=1, mask="independent")
    x = torch.randn(5, 4)
    Counted.count = 0
    optimizer.step(lambda keep: last(Counted.apply(first(x[keep]))).pow(2).sum(1))
    assert Counted.count == 1  # in the second pass only


def test_gradients_of_tensors_not_drawn_are_never_computed():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.1), p.model, beta=0.4, gamma=1, mask="independent", seed=1)
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
    optimizer = ESAM(
        torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, beta=1e-9, gamma=1, mask="independent", seed=0
    )
    closure = lambda keep: p.closure(keep) + (extra**2).sum()  # noqa: E731
    optimizer.step(closure)
    optimizer.add_param_group({"params": [extra]})
    (eps,) = perturbations(optimizer, closure, [extra], 1)
    assert eps[0].any()


def test_a_drawn_group_norm_in_channels_last_does_not_crash_the_process():
    """torch's backward does, when the input's gradient is not wanted; a crash here ends the test run."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(8 * 16, 3)).to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    x, y = torch.randn(16, 3, 8, 8), torch.randint(0, 3, (16,))
    for net, inputs in ((model, x.to(memory_format=torch.channels_last)), (twin, x)):
        optimizer = ESAM(torch.optim.SGD(net.parameters(), lr=0.1), net, beta=0.2, gamma=1, mask="independent", seed=0)
        for _ in range(30):
            optimizer.step(lambda keep, n=net, i=inputs: F.cross_entropy(n(i[keep]), y[keep], reduction="none"))
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("beta", [0.1, 0.4, 0.5, 0.6, 0.9])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_suffix_is_a_run_to_the_output_with_the_probabilities_it_states(count, beta):
    generator = torch.Generator().manual_seed(0)
    draws = [suffix(count, beta, generator) for _ in range(4000)]
    assert all(d.picks == list(range(count - len(d.picks), count)) and d.picks for d in draws)
    stated = torch.tensor(draws[0].probabilities)
    seen = torch.tensor([sum(i in d.picks for d in draws) for i in range(count)]) / len(draws)
    assert ((seen - stated).abs() < 4.5 * (stated * (1 - stated) / len(draws)).sqrt() + 1e-9).all()
    assert stated.min() >= beta / 2
    assert beta - 1e-6 <= stated.mean() <= beta + 1 / count


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


def first_pass_of_a_run(model, x, picks):
    """Return the elements that a first pass saves for its backward, the second time that these tensors are drawn."""
    optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.1), model, gamma=1, beta=0.5, seed=0)
    saved = []

    def closure(keep):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved[-1].append(t.numel()) or t, lambda t: t):
            saved.append([])
            return model(x[keep]).square().sum(1)

    optimizer.step(closure)  # draws all tensors, whose norms it does not know yet
    optimizer.choice = lambda count, beta, generator: Mask(picks, [0.5] * count)
    optimizer.step(closure)
    return sum(saved[2])


def test_nothing_is_saved_for_tensors_that_are_not_drawn():
    layers = [m for _ in range(6) for m in (nn.Linear(8, 8), nn.Tanh())]
    model, x = nn.Sequential(*layers, nn.Linear(8, 3)), torch.randn(20, 8)
    everything = first_pass_of_a_run(model, x, list(range(14)))
    head = first_pass_of_a_run(model, x, [12, 13])
    assert head <= 20 * 8 + 20 * 3 + 8 * 3  # the head's input, its output for the square, its weight
    assert everything >= 6 * 20 * 8 + head


def test_tensors_not_drawn_require_gradients_again_afterwards_also_when_the_closure_fails():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), torch.randn(6, 4)
    model[0].bias.requires_grad_(False)  # frozen by the user
    optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.1), model, gamma=1, seed=0)
    seen = []

    def closure(keep):
        seen.append([p.requires_grad for p in model.parameters()])
        if len(seen) == 5:
            raise RuntimeError("out of memory")
        return model(x[keep]).square().sum(1)

    optimizer.step(closure)
    optimizer.choice = lambda count, beta, generator: Mask([count - 1], [0.5] * count)
    optimizer.step(closure)
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step(closure)
    trainable = [True, False, True, True]
    assert seen == [trainable, trainable, [False, False, False, True], trainable, [False, False, False, True]]
    assert [p.requires_grad for p in model.parameters()] == trainable


@pytest.mark.parametrize("ranking", ["loss", "gradient"])
def test_a_draw_of_tensors_that_the_batch_does_not_use_perturbs_nothing(ranking):
    """A branch of the model may rest in a batch; the step is then the base's own, on the kept samples."""
    model = nn.ModuleDict({"used": nn.Linear(4, 3), "unused": nn.Linear(4, 3)}).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    weights = list(model["used"].parameters()) + list(model["unused"].parameters())
    optimizer = ESAM(torch.optim.SGD(weights, lr=0.1), model["used"], gamma=0.5, seed=0, ranking=ranking)
    optimizer.step(lambda keep: (model["used"](x[keep]) + model["unused"](x[keep])).square().sum(1))
    optimizer.choice = lambda count, beta, generator: Mask([2, 3], [0.5] * count)
    kept = []

    def closure(keep):
        kept.append(keep)
        return model["used"](x[keep]).square().sum(1)

    before = [w.detach().clone() for w in weights]
    optimizer.step(closure)
    for w, old in zip(weights[:2], before, strict=False):
        w.data.copy_(old)
    wanted = torch.autograd.grad(closure(kept[1]).mean(), weights[:2])
    assert all(torch.allclose(w.grad, g, atol=1e-12) for w, g in zip(weights[:2], wanted, strict=True))
