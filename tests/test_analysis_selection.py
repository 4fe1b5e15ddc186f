"""Are selection and linearity what plain loops and hand-worked numbers say?"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esam.analysis import ModelObjective, gradient_cosines, linearity, select
from esam.optim import reference

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


# Selection -----------------------------------------------------------------------------------------------------------


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x, y = torch.randn(12, 5).double(), torch.randint(0, 3, (12,))
    return model, x, y, ModelObjective(model, [(x[:7], y[:7]), (x[7:], y[7:])])


def plain_selection(model, x, y, rho, gamma):
    """Losses at theta and theta + eps, and who is in B+, with the model's own weights moved and moved back."""
    weights, seen = list(model.parameters()), []

    def losses(keep):
        seen.append(F.cross_entropy(model(x[keep]), y[keep], reduction="none"))
        return seen[-1]

    def at_perturbed(rows=slice(None)):
        return torch.cat([g.flatten() for g in reference.at_perturbed(losses, weights, eps, lambda: rows)])

    g = reference.gradient(losses, weights)
    eps = [rho * own / reference.norm(g) for own in g]
    whole = at_perturbed()
    before, perturbed = (found.detach() for found in seen)
    plus = reference.ESAM(rho, 1, gamma, None).b_plus(perturbed - before).tolist()
    minus = [i for i in range(len(y)) if i not in plus]
    cosines = {
        name: F.cosine_similarity(at_perturbed(rows), whole, dim=0).item()
        for name, rows in (("plus", plus), ("minus", minus))
    }
    return before, perturbed, plus, minus, cosines


@pytest.mark.parametrize("gamma", [0.5, 0.25])
def test_a_selection_is_that_of_a_plain_loop(gamma):
    model, x, y, objective = problem()
    theta = objective.parameters
    found = select(objective, theta, gamma=gamma, rho=0.3)
    cosines = gradient_cosines(objective, theta, found)
    losses, perturbed, plus, minus, plain_cosines = plain_selection(model, x, y, 0.3, gamma)
    assert found.rows["plus"].tolist() == plus and found.rows["minus"].tolist() == minus
    assert torch.allclose(found.losses, losses, rtol=1e-12)
    assert torch.allclose(found.perturbed_losses, perturbed, rtol=1e-10)
    for name, rows in (("plus", plus), ("minus", minus), ("all", list(range(12)))):
        one = found.sets()[name]
        assert one["count"] == len(rows)
        assert one["loss"] == pytest.approx(losses[rows].mean().item(), rel=1e-12)
        assert one["perturbed_loss"] == pytest.approx(perturbed[rows].mean().item(), rel=1e-10)
        assert one["rise"] == pytest.approx((perturbed[rows] - losses[rows]).mean().item(), rel=1e-8)
    assert {name: cosines[name] for name in plain_cosines} == pytest.approx(plain_cosines, rel=1e-8)
    rises = {name: one["rise"] for name, one in found.sets().items()}
    assert rises["minus"] <= rises["all"] <= rises["plus"]


def test_the_random_set_is_as_large_as_b_plus_and_decided_by_the_seed():
    _, _, _, objective = problem()
    found = [select(objective, objective.parameters, gamma=0.25, seed=s).rows for s in (0, 0, 1)]
    one, same, other = (rows["random"].tolist() for rows in found)
    assert len(set(one)) == len(found[0]["plus"]) == 3 and one == same != other


@pytest.mark.parametrize("gamma", [0, 1.5, 1, 0.99])
def test_a_share_that_leaves_nothing_is_refused(gamma):
    _, _, _, objective = problem()
    with pytest.raises(ValueError, match=r"gamma must be in \(0, 1\]|no sample of 12 is left for B-"):
        select(objective, objective.parameters, gamma=gamma)
