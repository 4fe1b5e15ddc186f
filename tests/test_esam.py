"""ESAM's two halves: which tensors are drawn (SWP) and which samples are kept (SDS), where it leads and at what price.

That a step is Algorithm 1 is shown by its twins, in test_methods.py and test_zoo.py.
"""

import pytest
import torch
from conftest import assert_same, problem
from torch import nn

from esam import ESAM, SAM
from esam.optim import Candidates, reference
from esam.optim.mask import Mask, independent, suffix


def start(lr=0.1, **settings):
    p = problem()
    return p, ESAM(torch.optim.SGD(p.model.parameters(), lr=lr), p.model, **{"rho": 0.05, "seed": 0, **settings})


def perturbations(p, optimizer, steps):
    """Yield eps of each step, where the second pass runs."""
    for _ in range(steps):
        yield p.visited(optimizer)[-1]


# Tensors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [independent, suffix])
def test_each_tensor_is_drawn_as_often_as_the_mask_states_and_one_of_them_always(draw):
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 3, 20):
        for beta in (1e-9, 0.1, 0.6, 0.9):
            draws = [draw(count, beta, generator) for _ in range(2000)]
            assert all(d.picks for d in draws)
            stated = torch.tensor(draws[0].probabilities, dtype=torch.float64)
            seen = torch.tensor([sum(i in d.picks for d in draws) for i in range(count)]) / len(draws)
            assert ((seen - stated).abs() < 4.5 * (stated * (1 - stated) / len(draws)).sqrt() + 1e-9).all()
            assert beta - 1e-6 <= stated.mean() <= beta + 1 / count
            if draw is suffix:
                assert all(d.picks == list(range(count - len(d.picks), count)) for d in draws)
                assert stated.min() >= max(beta / 2, 2 * beta - 1)  # no radius is stretched much


@pytest.mark.parametrize("mask", ["independent", "suffix"])
def test_over_500_masks_the_mean_perturbation_of_each_tensor_is_sams(mask):
    p, optimizer = start(lr=0.0, beta=0.6, gamma=1, mask=mask)
    (sam,) = perturbations(p, SAM(torch.optim.SGD(p.model.parameters(), lr=0.0), p.model, rho=0.05), 1)
    optimizer.step(p.closure)  # takes all of them
    mean = [torch.zeros_like(w) for w in p.weights]
    for eps in perturbations(p, optimizer, 500):
        mean = [a + e / 500 for a, e in zip(mean, eps, strict=True)]
    for a, b in zip(mean, sam, strict=True):
        ratio = float((a * b).sum() / (b * b).sum())
        torch.testing.assert_close(a, ratio * b, rtol=1e-9, atol=1e-12)
        # drawn with probability p >= 0.3 and divided by it: a variance of (1 - p) / p a step
        assert abs(ratio - 1) < 4 * (0.7 / 0.3 / 500) ** 0.5


def test_the_released_norm_is_always_rho_over_the_probability_of_a_draw():
    p, optimizer = start(beta=0.5, gamma=1, norm="selected")
    probability = 0.5 + 0.5**8 / 8  # of one of eight: by its own draw, or by force where all miss
    for eps in perturbations(p, optimizer, 10):
        assert reference.norm(eps) == pytest.approx(0.05 / probability, rel=1e-9)


def test_gradients_of_tensors_not_drawn_are_never_computed():
    p, optimizer = start(beta=0.4, gamma=1, seed=1)
    weights = list(p.model.parameters())
    optimizer.step(p.closure)
    computed = []
    for i, w in enumerate(weights):
        w.register_hook(lambda g, i=i: computed.append(i))
    for eps in perturbations(p, optimizer, 5):
        drawn = [i for i, e in enumerate(eps) if e.any()]
        assert sorted(computed[: len(drawn)]) == drawn
        assert sorted(computed[len(drawn) :]) == list(range(len(weights)))
        computed.clear()


def test_a_suffix_follows_the_depth_of_the_model_whatever_the_order_of_the_groups_and_stops_backward_early():
    """Decay for matrices, none for biases: as every transformer is trained."""
    drawn, passed = [], []

    def watch(layer, inputs, output):
        output.register_hook(lambda _: passed.append(layer))

    for apart in (False, True):
        p = problem()
        for layer in p.model:
            layer.register_forward_hook(watch)
        weights, layers = list(p.model.parameters()), [n for n, part in enumerate(p.model) for _ in part.parameters()]
        groups = [{"params": [w for w in weights if w.dim() == d], "weight_decay": 0.1 * (d - 1)} for d in (2, 1)]
        base = torch.optim.SGD(groups if apart else weights, lr=0.0)
        optimizer = ESAM(base, p.model, mask="suffix", beta=0.5, gamma=1, seed=1)
        masks = []
        for eps in perturbations(p, optimizer, 40):
            masks.append([bool(e.any()) for e in eps])
            assert masks[-1] == sorted(masks[-1])  # a run to the output, in the order of the model
            # of six layers, the first pass goes back to the earliest drawn, the second through all
            assert len(passed) == 6 - layers[masks[-1].index(True)] + 6
            passed.clear()
        drawn.append(masks)
    assert drawn[0] == drawn[1]
    assert 2 < sum(mask[0] for mask in drawn[1][1:]) < 19  # .26 of 39 steps, give or take three deviations


def test_a_group_added_later_is_drawn_at_its_first_step():
    p, optimizer = start(beta=1e-9, gamma=1)
    p.model.register_parameter("extra", nn.Parameter(torch.ones(3, dtype=torch.float64)))
    loss_of = lambda x, y: p.loss_of(x, y) + (p.model.extra**2).sum()  # noqa: E731
    p.step(optimizer, loss_of)
    optimizer.add_param_group({"params": [p.model.extra]})
    assert p.visited(optimizer, loss_of)[-1][0].any()  # a model's own parameters come before its layers'


def test_a_draw_of_tensors_that_the_batch_does_not_use_perturbs_nothing():
    """A branch of the model may rest in a batch; the step is then the base's own, on the kept samples."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"unused": nn.Linear(4, 3), "used": nn.Linear(4, 3)}).double()
    x, kept = torch.randn(6, 4, dtype=torch.float64), []
    base = torch.optim.SGD(model.parameters(), lr=0.0)
    # the first step takes every tensor, to learn its norm
    optimizer = ESAM(base, model, gamma=0.5, mask=lambda count, beta, generator: Mask([0, 1], [0.5] * count))
    optimizer.step(lambda x: (model["used"](x) + model["unused"](x)).square().sum(1), x)
    theta = [p.detach().clone() for p in model.parameters()]

    def closure(keep):
        kept.append(keep)
        assert_same(model.parameters(), theta)
        return model["used"](x[keep]).square().sum(1)

    optimizer.step(closure)
    assert len(kept[-1]) == 3
    used = list(model["used"].parameters())
    assert_same([p.grad for p in used], torch.autograd.grad(closure(kept[-1]).mean(), used), 1e-12)
    assert all(p.grad is None for p in model["unused"].parameters())


# Samples --------------------------------------------------------------------------------------------------------------


def test_the_random_ranking_is_uniform():
    counts = torch.zeros(12)
    p, optimizer = start(gamma=0.5, ranking="random")
    for _ in range(300):
        optimizer.step(p.closure)
        counts[p.keeps[-1]] += 1
    assert ((counts / 300 - 0.5).abs() < 4 * (0.25 / 300) ** 0.5).all()


def test_a_ranking_of_the_users_own_decides_and_must_score_each_sample():
    seen = []

    def first_come(batch: Candidates) -> torch.Tensor:
        seen.append(batch.losses)
        return -torch.arange(len(batch.losses))

    p, optimizer = start(gamma=0.25, ranking=first_come)
    optimizer.step(p.closure)
    assert p.keeps[-1].tolist() == [0, 1, 2]
    assert seen[0].shape == (12,) and not seen[0].requires_grad
    for scores in (torch.zeros(3), 1.0, torch.zeros(12, 1)):
        p, optimizer = start(ranking=lambda batch, scores=scores: scores)
        before = p.weights
        with pytest.raises(ValueError, match="score"):
            optimizer.step(p.closure)
        assert_same(p.weights, before)
