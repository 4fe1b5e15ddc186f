"""Are selection, linearity and the savings of SWP what plain loops and hand-worked numbers say?"""

import ctypes
import math
import platform
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esam.analysis import ModelObjective, gradient_cosines, linearity, losses_along, sam_eps, select
from esam.analysis.cost import (
    CASES,
    Fit,
    Saving,
    fit_savings,
    keep_freed_memory,
    measure_savings,
    predicted,
    savings_json,
)
from esam.analysis.objective import value_and_gradient

# Linearity -----------------------------------------------------------------------------------------------------------


def test_zeta_of_a_quadratic_is_half_the_curvature_along_eps():
    torch.manual_seed(0)
    matrix = torch.randn(4, 4).double()
    matrix = matrix + matrix.T
    slope, eps = torch.randn(4).double(), torch.randn(4).double()
    found = linearity(
        lambda p: slope @ p["w"] + 0.5 * p["w"] @ matrix @ p["w"], {"w": torch.randn(4).double()}, {"w": eps}
    )
    assert found == pytest.approx(abs(0.5 * eps @ matrix @ eps).item(), rel=1e-10)


def test_zeta_of_a_linear_loss_is_zero_and_of_a_concave_one_positive():
    assert linearity(lambda p: 3 * p["w"].sum(), {"w": torch.ones(2)}, {"w": torch.ones(2)}) == pytest.approx(
        0, abs=1e-6
    )
    # -w^2 from 1 to 3: -9 + 1 + 2 * 2 = -4
    assert linearity(lambda p: -p["w"].square().sum(), {"w": torch.ones(1)}, {"w": 2 * torch.ones(1)}) == 4


# Selection -----------------------------------------------------------------------------------------------------------


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x, y = torch.randn(12, 5).double(), torch.randint(0, 3, (12,))
    return model, x, y, ModelObjective(model, [(x[:7], y[:7]), (x[7:], y[7:])])


def plain_selection(model, x, y, rho, gamma):
    """Losses at theta and theta + eps, and who is in B+, with the model's own weights moved and moved back."""
    weights = list(model.parameters())
    model.zero_grad()
    losses = F.cross_entropy(model(x), y, reduction="none")
    losses.mean().backward()
    norm = math.sqrt(sum(w.grad.square().sum().item() for w in weights))
    eps = [rho * w.grad / norm for w in weights]
    kept = [w.detach().clone() for w in weights]
    with torch.no_grad():
        for w, e in zip(weights, eps, strict=True):
            w.add_(e)
    perturbed = F.cross_entropy(model(x), y, reduction="none")
    rises = (perturbed - losses).tolist()
    plus = sorted(sorted(range(len(rises)), key=lambda i: -rises[i])[: round(gamma * len(rises))])
    minus = [i for i in range(len(rises)) if i not in plus]

    def gradient(rows):
        grads = torch.autograd.grad(F.cross_entropy(model(x[rows]), y[rows]), weights)
        return torch.cat([g.flatten() for g in grads])

    whole = gradient(list(range(len(rises))))
    cosines = {
        name: F.cosine_similarity(gradient(r), whole, dim=0).item() for name, r in (("plus", plus), ("minus", minus))
    }
    with torch.no_grad():
        for w, k in zip(weights, kept, strict=True):
            w.copy_(k)
    return losses.detach(), perturbed.detach(), plus, minus, cosines


@pytest.mark.parametrize("gamma", [0.5, 0.25])
def test_a_selection_is_that_of_a_plain_loop(gamma):
    model, x, y, objective = problem()
    theta = objective.parameters
    found = select(objective, theta, gamma=gamma, rho=0.3)
    cosines = gradient_cosines(objective, theta, found)
    losses, perturbed, plus, minus, plain_cosines = plain_selection(model, x, y, 0.3, gamma)
    assert found.plus.tolist() == plus and found.minus.tolist() == minus
    assert torch.allclose(found.losses, losses, rtol=1e-12)
    assert torch.allclose(found.perturbed_losses, perturbed, rtol=1e-10)
    for name, rows in (("plus", plus), ("minus", minus), ("all", list(range(12)))):
        one = found.sample_set(name)
        assert one.count == len(rows)
        assert one.loss == pytest.approx(losses[rows].mean().item(), rel=1e-12)
        assert one.perturbed_loss == pytest.approx(perturbed[rows].mean().item(), rel=1e-10)
        assert one.rise == pytest.approx((perturbed[rows] - losses[rows]).mean().item(), rel=1e-8)
    assert {name: cosines[name] for name in plain_cosines} == pytest.approx(plain_cosines, rel=1e-8)
    assert found.sample_set("minus").rise <= found.sample_set("all").rise <= found.sample_set("plus").rise
    assert found.as_json()["plus"]["rise"] == found.sample_set("plus").rise


def test_the_random_set_is_as_large_as_b_plus_and_decided_by_the_seed():
    _, _, _, objective = problem()
    one, same, other = (select(objective, objective.parameters, gamma=0.25, seed=s) for s in (0, 0, 1))
    assert len(one.random) == len(one.plus) == 3 and len(set(one.random.tolist())) == 3
    assert torch.equal(one.random, same.random) and not torch.equal(one.random, other.random)


def test_losses_along_eps_begin_at_theta_and_pass_theta_plus_eps():
    _, _, _, objective = problem()
    theta = objective.parameters
    found = select(objective, theta, gamma=0.5, rho=0.3)
    curves = losses_along(objective, theta, found, ts=[0, 1, 2])
    for name, curve in curves.items():
        one = found.sample_set(name)
        assert curve[:2] == pytest.approx([one.loss, one.perturbed_loss], rel=1e-12)
    beyond = {n: p + 2 * found.eps[n] for n, p in theta.items()}
    assert curves["all"][2] == pytest.approx(objective(beyond).item(), rel=1e-12)


def test_a_given_eps_is_used_as_it_is():
    _, _, _, objective = problem()
    theta = objective.parameters
    downhill = {n: -e for n, e in sam_eps(value_and_gradient(objective, theta)[1], 0.1).items()}
    assert select(objective, theta, eps=downhill).sample_set("all").rise < 0


@pytest.mark.parametrize("gamma", [0, 1.5, 1, 0.99])
def test_a_share_that_leaves_nothing_is_refused(gamma):
    _, _, _, objective = problem()
    with pytest.raises(ValueError, match=r"gamma must be in \(0, 1\]|no sample of 12 is left for B-"):
        select(objective, objective.parameters, gamma=gamma)


def test_an_unknown_set_is_refused():
    _, _, _, objective = problem()
    with pytest.raises(ValueError, match="one of all, plus, minus, random, got 'most'"):
        select(objective, objective.parameters).sample_set("most")


# What SWP saves ------------------------------------------------------------------------------------------------------


def exact_savings(k1, k2, noise=0.0):
    torch.manual_seed(0)
    rows = [(n, b / 10) for n in (50, 75, 100, 125) for b in range(1, 11)]
    g = [k1 * (1 - b) + k2 * (1 - b) / (n * b) + noise * torch.randn(()).item() for n, b in rows]
    return [Saving(n, b, value, 0.0, 1) for (n, b), value in zip(rows, g, strict=True)]


def test_the_fit_finds_the_numbers_that_the_savings_were_made_with():
    fit = fit_savings(exact_savings(0.3185, 0.1310))
    assert (fit.k1, fit.k2, fit.r_squared) == pytest.approx((0.3185, 0.1310, 1.0), rel=1e-9)
    assert predicted(fit, 50, 0.1) == pytest.approx(0.3185 * 0.9 + 0.1310 * 0.9 / 5)


def test_noise_lowers_r_squared():
    fit = fit_savings(exact_savings(0.3, 0.1, noise=0.05))
    assert 0.5 < fit.r_squared < 0.9
    assert fit.k1 == pytest.approx(0.3, abs=0.1) and abs(fit.k2 - 0.1) < 3 * fit.k2_error


def test_r_squared_by_hand():
    # g against beta at N = 1: (1 - b, (1 - b) / b) = (.5, 1), (.2, .25), (0, 0); the last one cannot be explained
    savings = [Saving(1, 0.5, 1.0, 0, 1), Saving(1, 0.8, 0.25, 0, 1), Saving(1, 1.0, 0.5, 0, 1)]
    fit = fit_savings(savings)
    assert (fit.k1, fit.k2) == pytest.approx((0, 1), abs=1e-9)
    mean = 1.75 / 3
    assert fit.r_squared == pytest.approx(1 - 0.25 / ((1 - mean) ** 2 + (0.25 - mean) ** 2 + (0.5 - mean) ** 2))
    assert fit.k2_error == pytest.approx((0.25 * 0.29 / 0.005625) ** 0.5)  # sqrt(residual * inverse of X'X at k2)
    assert math.isnan(fit_savings(savings[:2]).k2_error)


@pytest.mark.parametrize("case", CASES)
def test_savings_are_measured_for_every_depth_and_beta(case):
    seen = []
    found = measure_savings(
        CASES[case], layers=[2, 4], betas=[0.1, 1.0], width=128, batch=64, draws=4, progress=lambda *p: seen.append(p)
    )
    assert [(s.layers, s.beta, s.draws) for s in found] == [(2, 0.1, 4), (2, 1.0, 4), (4, 0.1, 4), (4, 1.0, 4)]
    assert all(s.saved < 1 and s.error >= 0 for s in found)
    assert seen[-1] == (8, 8)
    assert len(savings_json(found, Fit(0.3, 0.1, 1.0))["savings"]) == 4


def test_swp_asks_for_the_drawn_gradients_alone_and_counts_the_fastest_of_its_passes(monkeypatch):
    asked, grad = [], torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda loss, inputs: asked.append(len(inputs)) or grad(loss, inputs))
    ticks = iter([0, 9, 0, 4, 0, 7, 0, 9, 0, 1, 0, 7] * 2)  # whole: 9, 4, 7; drawn: 9, 1, 7; the same again
    monkeypatch.setattr("esam.analysis.cost.time.process_time", lambda: next(ticks))
    (found,) = measure_savings(CASES["serial"], layers=[40], betas=[0.1], width=2, batch=2, draws=2)
    assert asked[:3] == [40] * 3 and 0 < max(asked[3:6]) < 20
    assert found.saved == 1 - 1 / 4 and found.error == 0


def test_freed_memory_can_be_kept_where_the_c_library_knows_how_to(monkeypatch):
    program = "from esam.analysis.cost import keep_freed_memory; print(keep_freed_memory())"  # it lasts: elsewhere
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == str(sys.platform == "linux" and platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not keep_freed_memory()


@pytest.mark.parametrize("case", CASES)
def test_a_network_has_as_many_units_a_layer_as_its_case_says(case):
    network = CASES[case](3, 4)
    assert len(list(network.parameters())) == {"serial": 3, "crossed": 6}[case]
    network(torch.ones(2, 4)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_what_cannot_be_measured_or_fitted_is_refused():
    with pytest.raises(ValueError, match="draws must be 2 or more"):
        measure_savings(CASES["serial"], layers=[1], betas=[0.5], draws=1)
    with pytest.raises(ValueError, match=r"each beta must be in \(0, 1\], got \[0\]"):
        measure_savings(CASES["serial"], layers=[1], betas=[0])
    with pytest.raises(ValueError, match="two measurements or more"):
        fit_savings([Saving(1, 0.5, 0.1, 0, 1), Saving(1, 1.0, 0.0, 0, 1)])


@pytest.mark.parametrize("case", CASES)
def test_signals_and_gradients_neither_fade_nor_burst_in_a_deep_network(case):
    torch.manual_seed(0)
    network = CASES[case](125, 64)
    network(torch.randn(32, 64)).square().mean().backward()
    sizes = [float(p.grad.norm()) for p in network.parameters()]
    assert min(sizes) > 1e-4
    assert max(sizes) < 1e4
