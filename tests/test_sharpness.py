"""Is the sharpness the number that one works out by hand, and does taking it change nothing?"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esam import SAM
from esam.analysis import sharpness
from esam.train import Task
from esam.train.batches import Normalise
from esam.train.datasets import load_data
from esam.train.loaded_run import IMAGES, RHO, training_objective, training_sharpness


def quadratic(matrix):
    """L = 1/2 w^T A w over all parameters laid end to end."""
    return lambda parameters: 0.5 * (w := torch.cat([p.flatten() for p in parameters.values()])) @ matrix @ w


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("rho", [1e-3, 0.05, 2.0])
def test_on_any_quadratic_it_is_rho_g_plus_half_rho_squared_times_the_curvature_along_g(rho):
    torch.manual_seed(0)
    matrix = torch.randn(7, 7, dtype=torch.float64)
    matrix = matrix @ matrix.T
    parameters = {"a": torch.randn(2, 2, dtype=torch.float64), "b": torch.randn(3, dtype=torch.float64)}
    g = matrix @ torch.cat([p.flatten() for p in parameters.values()])
    by_hand = rho * g.norm() + rho**2 / 2 * (g @ matrix @ g) / (g @ g)
    assert sharpness(quadratic(matrix), parameters, rho=rho) == pytest.approx(by_hand.item(), rel=1e-10)


def test_unused_parameters_stationary_points_and_losses_that_are_not_finite():
    matrix = torch.diag(float64(3, 4))
    used = lambda parameters: quadratic(matrix)({"w": parameters["w"]})  # noqa: E731
    assert sharpness(used, {"w": float64(1, 1), "idle": float64(9)}, rho=0.5) == pytest.approx(2.955, rel=1e-14)
    assert sharpness(quadratic(torch.eye(2, dtype=torch.float64)), {"w": float64(0, 0)}, rho=0.5) == 0.0
    assert math.isnan(sharpness(lambda p: p["w"].sum() * math.inf, {"w": float64(1, 1)}, rho=0.5))


@pytest.mark.parametrize("rho", [0, -0.1, float("nan")])
def test_a_radius_that_is_none_is_refused(rho):
    with pytest.raises(ValueError, match="rho"):
        sharpness(quadratic(torch.eye(1)), {"w": torch.ones(1)}, rho=rho)


# Of a trained model --------------------------------------------------------------------------------------------------


def network():
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)
    return nn.Sequential(*layers)


class InFloat64(nn.Sequential):
    """Takes images in float32, as batches of them are."""

    def forward(self, x):
        return super().forward(x.double())


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_data("digits")


def test_of_a_model_it_is_the_rise_under_sams_own_step(digits):
    model = InFloat64(*network()).double().eval()
    count = min(IMAGES, len(digits.train[1]))
    rows = torch.tensor([round(i * (len(digits.train[1]) - 1) / (count - 1)) for i in range(count)])
    x = torch.cat([x for x, _ in training_objective(model, digits, torch.device("cpu")).batches])
    normalised = (digits.train[0][rows].double() / 255 - digits.transform.mean[0]) / digits.transform.std[0]
    assert torch.allclose(x.double(), normalised, rtol=1e-5, atol=1e-6)  # float32: a few roundings of 6e-8
    losses = []

    def closure(keep):
        losses.append(F.cross_entropy(model(x[keep]), digits.train[1][rows][keep], reduction="none"))
        return losses[-1]

    SAM(torch.optim.SGD(model.parameters(), lr=0.0), model, rho=RHO).step(closure)
    by_hand = (losses[1].mean() - losses[0].mean()).item()
    assert training_sharpness(model, digits, torch.device("cpu")) == pytest.approx(by_hand, rel=1e-10)


def test_fewer_images_than_it_asks_for_are_all_taken():
    torch.manual_seed(0)
    few = (torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8), torch.arange(7))
    data = Task(few, few, classes=tuple("0123456789"), transform=Normalise((0.5,), (0.25,)))
    assert training_sharpness(network(), data, torch.device("cpu")) > 0
