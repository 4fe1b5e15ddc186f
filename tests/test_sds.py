"""Sharpness-sensitive data selection: which samples, how many, and at what price."""

import pytest
import torch
from conftest import normalised, problem
from torch import nn

from esam import ESAM
from esam.optim.selection import Candidates, keep_highest, reads_head


def start(build=None, batch=12, **settings):
    p = problem(*([build] if build else []), batch=batch)
    return p, ESAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, rho=0.2, seed=0, **settings)


def by_loss(batch: Candidates) -> torch.Tensor:
    """A ranking of a user's own."""
    return batch.losses


@pytest.mark.parametrize(
    ("gamma", "batch", "k"), [(0.5, 12, 6), (0.5, 5, 2), (0.1, 3, 1), (0.7, 10, 7), (0.99, 4, 4), (0.3, 1, 1)]
)
def test_exactly_the_share_gamma_is_kept_and_never_nothing(gamma, batch, k):
    p, optimizer = start(batch=batch, gamma=gamma)
    optimizer.step(p.closure)
    assert len(p.keeps[-1]) == k


def test_ties_go_to_the_lower_index():
    assert keep_highest(torch.tensor([1.0, 2.0, 2.0, 2.0]), 0.5).tolist() == [1, 2]
    assert keep_highest(torch.zeros(6), 0.5).tolist() == [0, 1, 2]
    assert keep_highest(torch.tensor([3.0, float("nan"), 1.0, float("inf")]), 0.5).tolist() == [0, 3]
    assert keep_highest(torch.tensor([float("nan")] * 3), 0.34).tolist() == [0]


def test_the_exact_ranking_keeps_the_samples_whose_loss_rises_most():
    p, optimizer = start(gamma=0.25, beta=1)
    at_theta = p.closure(slice(None)).detach()
    seen = []

    def closure(keep):
        losses = p.closure(keep)
        seen.append(losses.detach())
        return losses

    optimizer.step(closure)
    rise = seen[1] - at_theta
    assert sorted(rise.topk(3).indices.tolist()) == p.keeps[-1].tolist()


def test_gamma_one_never_pays_for_a_ranking():
    p, optimizer = start(gamma=1)
    optimizer.step(p.closure)
    assert p.keeps == [slice(None), slice(None)]


def test_the_exact_ranking_costs_one_forward_and_no_backward():
    p, optimizer = start(gamma=0.5)
    grad_modes = []
    p.model.register_forward_pre_hook(lambda *_: grad_modes.append(torch.is_grad_enabled()))
    optimizer.step(p.closure)
    assert grad_modes == [True, False, True]


def test_the_random_ranking_is_uniform_and_follows_the_seed():
    counts = torch.zeros(12)
    p, optimizer = start(gamma=0.5, ranking="random")
    for _ in range(300):
        optimizer.step(p.closure)
        counts[p.keeps[-1]] += 1
    assert ((counts / 300 - 0.5).abs() < 4 * (0.25 / 300) ** 0.5).all()
    picks = []
    for _ in range(2):
        p, optimizer = start(gamma=0.5, ranking="random")
        optimizer.step(p.closure)
        picks.append(p.keeps[-1].tolist())
    assert picks[0] == picks[1]


def test_a_ranking_of_the_users_own_decides():
    seen = []

    def first_come(batch: Candidates) -> torch.Tensor:
        seen.append(batch.losses)
        return -torch.arange(len(batch.losses))

    p, optimizer = start(gamma=0.25, ranking=first_come)
    optimizer.step(p.closure)
    assert p.keeps[-1].tolist() == [0, 1, 2]
    assert seen[0].shape == (12,)
    assert not seen[0].requires_grad


@pytest.mark.parametrize("scores", [torch.zeros(3), 1.0, torch.zeros(12, 1)])
def test_a_ranking_that_does_not_score_each_sample_is_refused(scores):
    p, optimizer = start(ranking=lambda batch: scores)
    before = p.weights
    with pytest.raises(ValueError, match=r"one score for each sample: a tensor of shape \(12,\)"):
        optimizer.step(p.closure)
    assert all(torch.equal(a, b) for a, b in zip(before, p.weights, strict=True))


def test_dropout_is_replayed_for_the_ranking():
    """With rho so small that nothing moves, the rise is zero only if both passes drop the same units."""
    rises = []

    def watching(batch):
        rises.append(batch.perturbed_losses() - batch.losses)
        return rises[-1]

    p = problem(normalised)
    base = torch.optim.SGD(p.model.parameters(), lr=0.1)
    ESAM(base, p.model, rho=1e-30, gamma=0.5, ranking=watching).step(p.closure)
    assert torch.equal(rises[0], torch.zeros_like(rises[0]))
    assert isinstance(p.model[3], nn.Dropout)


def test_a_step_moves_the_global_stream_as_its_first_pass_alone_would():
    p, optimizer = start(normalised)
    torch.manual_seed(1)
    p.closure(slice(None))
    after = torch.get_rng_state()
    torch.manual_seed(1)
    p.keeps.clear()
    optimizer.step(p.closure)
    assert len(p.keeps) == 3
    assert torch.equal(torch.get_rng_state(), after)


def test_sds_ranks_over_all_micro_batches_and_skips_those_it_keeps_nothing_of():
    p, optimizer = start(gamma=0.25, ranking=by_loss)
    p.y = p.model(p.x).argmax(1)
    p.y[[9, 10, 11]] = (p.y[[9, 10, 11]] + 1) % 3  # wrong labels: the highest losses
    calls = []

    def part(a, b):
        def closure(keep):
            calls.append((a, keep))
            return nn.functional.cross_entropy(p.model(p.x[a:b][keep]), p.y[a:b][keep], reduction="none")

        return closure

    optimizer.step([part(0, 8), part(8, 12)])
    assert len(calls) == 3
    assert calls[-1][0] == 8
    assert calls[-1][1].tolist() == [1, 2, 3]


@pytest.mark.parametrize("scale", [None, 2.0**10])
def test_the_aligned_ranking_scores_by_the_first_order_rise_in_the_last_layer(scale):
    p, optimizer = start(gamma=0.25, ranking="aligned")
    last = [p.model[4].weight, p.model[4].bias]
    gradients = [
        torch.cat([g.flatten() for g in torch.autograd.grad(p.closure(torch.tensor([i])).sum(), last)])
        for i in range(12)
    ]
    rises = torch.stack(gradients) @ sum(gradients)
    p.keeps.clear()
    seen = []
    rank = optimizer.ranking
    optimizer.ranking = reads_head(lambda batch: seen.append(rank(batch)) or seen[-1])
    optimizer.step(p.closure, scaler=None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale))
    assert torch.allclose(seen[0], rises, rtol=1e-9)
    assert len(p.keeps) == 2  # no pass of its own
    assert not any(layer._forward_hooks for layer in p.model.modules())


def test_a_ranking_by_the_last_layer_reads_all_micro_batches():
    p, whole = start(gamma=0.5, ranking="aligned")
    q, pieces = start(gamma=0.5, ranking="aligned")

    def part(a, b):
        return lambda keep: nn.functional.cross_entropy(q.model(q.x[a:b][keep]), q.y[a:b][keep], reduction="none")

    for _ in range(5):
        whole.step(p.closure)
        pieces.step([part(0, 5), part(5, 12)])
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(p.weights, q.weights, strict=True))


@pytest.mark.parametrize("model", [nn.Conv1d(6, 3, 1), nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 3))])
def test_the_aligned_ranking_says_when_there_is_no_last_linear_layer_to_read(model):
    model = model.double()
    x = torch.randn(12, 6, 1, dtype=torch.float64) if isinstance(model, nn.Conv1d) else torch.randn(12, 6).double()
    optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.1), model, ranking="aligned")
    before = [w.clone() for w in model.parameters()]
    with pytest.raises(ValueError, match='reads the last nn.Linear .* use "exact"'):
        optimizer.step(lambda keep: model(x[keep]).flatten(1).pow(2).sum(1))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not any(layer._forward_hooks for layer in model.modules())
