"""Do the kinds of sharpness give the numbers that one works out by hand, of functions and of trained models?"""

import math

import pytest
import torch
from torch import nn

from esam import ASAM
from esam.analysis import ModelObjective, adaptive_sharpness, ascent_sharpness, m_sharpness, sharpness
from esam.train import Task
from esam.train.batches import Normalise
from esam.train.loaded_run import IMAGES, RHO, training_sharpness


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def quadratic(matrix, slope):
    """L = g.w + 1/2 w^T A w."""
    return lambda p: slope @ p["w"] + 0.5 * p["w"] @ matrix @ p["w"]


def highest_on_the_ball(matrix, slope, rho):
    """max g.e + 1/2 e^T A e over |e| <= rho: e = (mu - A)^-1 g with mu > lambda_max and |e| = rho, by bisection."""
    values, vectors = torch.linalg.eigh(matrix)
    g = vectors.T @ slope
    low, high = values.max().item(), values.max().item() + slope.norm().item() / rho + 1
    for _ in range(200):
        mu = (low + high) / 2
        low, high = (mu, high) if (g / (mu - values)).norm() > rho else (low, mu)
    e = g / (high - values)
    return (g @ e + 0.5 * (values * e * e).sum()).item()


def problem(n=6):
    torch.manual_seed(0)
    matrix = torch.randn(n, n, dtype=torch.float64)
    return matrix @ matrix.T, torch.randn(n, dtype=torch.float64)


@pytest.mark.parametrize("rho", [1e-3, 0.05, 2.0])
def test_on_a_quadratic_it_is_rho_g_plus_half_rho_squared_times_the_curvature_along_g(rho):
    matrix, slope = problem()
    found = sharpness(quadratic(matrix, slope), {"w": (w := torch.randn(6, dtype=torch.float64))}, rho=rho)
    g = slope + matrix @ w
    assert found == pytest.approx((rho * g.norm() + rho**2 / 2 * (g @ matrix @ g) / (g @ g)).item(), rel=1e-10)


def test_unused_parameters_stationary_points_and_losses_that_are_not_finite():
    bowl = quadratic(torch.diag(float64(3, 4)), float64(0, 0))
    assert sharpness(bowl, {"w": float64(1, 1), "idle": float64(9)}, rho=0.5) == pytest.approx(2.955, rel=1e-14)
    assert sharpness(bowl, {"w": float64(0, 0)}, rho=0.5) == 0.0
    assert math.isnan(sharpness(lambda p: p["w"].sum() * math.inf, {"w": float64(1, 1)}, rho=0.5))


@pytest.mark.parametrize("rho", [0.01, 0.3, 3.0])
def test_projected_ascent_on_a_quadratic_finds_the_maximum_on_the_ball(rho):
    matrix, slope = problem()
    zero = {"w": torch.zeros(6, dtype=torch.float64)}
    exact = highest_on_the_ball(matrix, slope, rho)
    one = sharpness(quadratic(matrix, slope), zero, rho=rho)
    many = ascent_sharpness(quadratic(matrix, slope), zero, rho=rho, steps=60)
    assert many == pytest.approx(exact, rel=1e-4)
    assert one < exact * (1 - 1e-6)


def test_steps_that_overshoot_are_halved_until_the_loss_rises():
    # L = sin(w): from 0 the top lies at pi / 2; the first step goes to 3, the next would go back to 0
    objective, zero = lambda p: torch.sin(p["w"]), {"w": torch.zeros((), dtype=torch.float64)}
    found = [ascent_sharpness(objective, zero, rho=3, steps=steps) for steps in (1, 3, 40)]
    assert found == pytest.approx([math.sin(3), math.sin(1.5), 1], rel=1e-9)


def test_adaptive_sharpness_is_the_rise_under_asams_own_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x, y = torch.randn(9, 4).double(), torch.randn(9).double()
    losses = []

    def closure(keep):
        losses.append((model(x[keep]).squeeze(1) - y[keep]) ** 2)
        return losses[-1]

    objective = ModelObjective(model, [(x, y)], lambda outputs, targets: (outputs.squeeze(1) - targets) ** 2)
    found = adaptive_sharpness(objective, objective.parameters, rho=0.5, eta=0.01)
    ASAM(torch.optim.SGD(model.parameters(), lr=0.0), model, rho=0.5, eta=0.01).step(closure)
    assert found == pytest.approx((losses[1].mean() - losses[0].mean()).item(), rel=1e-10)


def test_adaptive_sharpness_does_not_see_layers_rescaled_against_each_other():
    torch.manual_seed(0)
    x, y = torch.randn(20, 4).double(), torch.randn(20).double()
    objective = lambda p: ((torch.relu(x @ p["a"]) @ p["b"] - y) ** 2).mean()  # noqa: E731
    theta = {"a": torch.randn(4, 6).double(), "b": torch.randn(6).double()}
    scaled = {"a": 5 * theta["a"], "b": theta["b"] / 5}
    one, other = (adaptive_sharpness(objective, p, rho=0.1, eta=0, steps=3) for p in (theta, scaled))
    assert one == pytest.approx(other, rel=1e-10)
    plain, fooled = (sharpness(objective, p, rho=0.1) for p in (theta, scaled))
    assert abs(plain - fooled) > 0.1 * plain


def linear_model():
    model = nn.Linear(3, 1, bias=False).double()
    x = torch.tensor([[3.0, 4.0, 0.0], [-3.0, -4.0, 0.0], [0.0, 0.0, 2.0]]).double()
    return ModelObjective(model, [(x[:2], torch.zeros(2)), (x[2:], torch.zeros(1))], lambda out, y: out.squeeze(1))


def test_m_sharpness_is_the_mean_over_groups_of_each_ones_own_rise_smaller_ones_counting_for_less():
    objective = linear_model()
    found = [m_sharpness(objective, objective.parameters, rho=0.1, m=m) for m in (1, 2, 99)]
    # the loss of a sample is x.w: its own rise is rho |x|; the first two cancel, so their group has no gradient at all
    one = sharpness(objective, objective.parameters, rho=0.1)
    assert found == pytest.approx([0.1 * (5 + 5 + 2) / 3, 0.1 * 2 / 3, one], rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o, p: ascent_sharpness(o, p, rho=0.1, steps=0), "steps must be 1 or more, got 0"),
        (lambda o, p: adaptive_sharpness(o, p, rho=0.1, eta=-1), "eta must be >= 0, got -1"),
        (lambda o, p: adaptive_sharpness(o, p, rho=0), "rho must be > 0, got 0"),
        (lambda o, p: sharpness(o, p, rho=-0.1), "rho"),
        (lambda o, p: sharpness(o, p, rho=math.nan), "rho"),
        (lambda o, p: m_sharpness(o, p, rho=0.1, m=0), "1 sample or more, got 0"),
        (lambda o, p: m_sharpness(lambda q: o(q), p, rho=0.1, m=1), "give a ModelObjective, got a function"),
    ],
)
def test_wrong_numbers_are_refused(call, message):
    objective = linear_model()
    with pytest.raises(ValueError, match=message):
        call(objective, objective.parameters)


# Of a trained model --------------------------------------------------------------------------------------------------


def images(count):
    torch.manual_seed(0)
    samples = torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8), torch.arange(count) % 3
    return Task(samples, samples, classes=tuple("abc"), transform=Normalise((0.5,), (0.25,)))


@pytest.mark.parametrize("count", [7, 3 * IMAGES])
def test_of_a_model_it_is_the_rise_in_eval_mode_on_evenly_spaced_images_or_on_all_of_fewer(count):
    task, model = images(count), nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    x, y = task.train
    rows = torch.tensor([round(i * (count - 1) / (min(count, IMAGES) - 1)) for i in range(min(count, IMAGES))])
    by_hand = ModelObjective(model, [((x[rows] / 255 - 0.5) / 0.25, y[rows])])
    found = training_sharpness(model, task, torch.device("cpu"))
    assert found == pytest.approx(sharpness(by_hand, by_hand.parameters, rho=RHO), rel=1e-4)  # float32, other batches
