"""Does the spectrum agree with quadratics whose spectrum is known, and with dense Hessians?"""

import sys

import pytest
import torch
from torch import nn

from esam.analysis import ModelObjective, hessian_trace, spectral_density, top_eigenvalues
from esam.train.models.vit import VisionTransformer


def quadratic(values):
    """L = 1/2 w^T A w with these eigenvalues, in a random basis, over parameters of two shapes."""
    torch.manual_seed(0)
    n = len(values)
    basis = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q
    matrix = basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T
    parameters = {"a": torch.randn(2, 3, dtype=torch.float64), "b": torch.randn(n - 6, dtype=torch.float64)}
    return (lambda p: 0.5 * (w := torch.cat([v.flatten() for v in p.values()])) @ matrix @ w), parameters


SPECTRUM = [12.0, 7.0, 3.0, *(0.1 * i for i in range(15)), -1.0, -20.0]


def test_the_top_eigenvalues_of_a_quadratic_are_those_it_was_made_with_whatever_the_loss_does_not_use():
    objective, parameters = quadratic(SPECTRUM)
    used = lambda p: objective({"a": p["a"], "b": p["b"]})  # noqa: E731
    for more in ({}, {"idle": torch.ones(3, dtype=torch.float64)}):
        found = top_eigenvalues(used, parameters | more, k=3, tolerance=1e-10)
        assert found == pytest.approx([12, 7, 3], rel=1e-8)  # the largest, not the largest in size: not -20
    assert top_eigenvalues(lambda p: p["w"].sum() + 0 * p["v"].sum(), {"w": torch.ones(2), "v": torch.ones(1)}) == [0]


def test_the_trace_is_within_its_error_and_the_error_shrinks():
    objective, parameters = quadratic(SPECTRUM)
    few, many = (hessian_trace(objective, parameters, vectors=n) for n in (20, 500))
    assert abs(many.value - sum(SPECTRUM)) < 4 * many.error
    assert many.error == pytest.approx(few.error / 5, rel=0.5)


def test_the_density_integrates_to_one_and_to_the_mean_eigenvalue():
    values = [float(i) for i in range(100)]
    objective, parameters = quadratic(values)
    found = spectral_density(objective, parameters, lanczos=40, draws=10, points=2000)
    assert torch.trapezoid(found.density, found.eigenvalues).item() == pytest.approx(1, abs=0.02)
    mean = torch.trapezoid(found.density * found.eigenvalues, found.eigenvalues).item()
    assert mean == pytest.approx(49.5, rel=0.05)
    assert -8 < found.eigenvalues[0] < 0 and 99 < found.eigenvalues[-1] < 107


def dense_hessian(objective):
    theta = objective.parameters
    flat = torch.cat([p.flatten() for p in theta.values()])

    def loss(vector):
        parts = vector.split([p.numel() for p in theta.values()])
        return objective({n: part.view_as(p) for (n, p), part in zip(theta.items(), parts, strict=True)})

    return torch.autograd.functional.hessian(loss, flat)


def convolutional():
    layers = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv2d(4, 3, 2), nn.BatchNorm2d(3), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(3, 3)).double()


def transformer():
    return VisionTransformer(patch=2, width=4, depth=1, heads=2, classes=3, channels=2, size=4).double()


@pytest.mark.parametrize("build", [convolutional, transformer])
def test_of_a_network_the_spectrum_is_that_of_the_dense_hessian(build):
    torch.manual_seed(0)
    x, y = torch.randn(10, 2, 4, 4).double(), torch.randint(0, 3, (10,))
    model = build()
    objective = ModelObjective(model, [(x[:6], y[:6]), (x[6:], y[6:])])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        dense = dense_hessian(objective)
    exact = torch.linalg.eigvalsh(dense).flip(0)
    top = top_eigenvalues(objective, objective.parameters, k=3, tolerance=1e-9)
    assert top == pytest.approx(exact[:3].tolist(), rel=1e-6)
    found = hessian_trace(objective, objective.parameters, vectors=30)
    assert abs(found.value - dense.trace().item()) < 4 * found.error


def test_a_transformer_in_float32_on_the_cpu_has_second_derivatives():
    torch.manual_seed(0)
    model = VisionTransformer(patch=4, width=8, depth=1, heads=2, classes=3, channels=3, size=8)
    objective = ModelObjective(model, [(torch.randn(4, 3, 8, 8), torch.randint(0, 3, (4,)))])
    assert top_eigenvalues(objective, objective.parameters, tolerance=1e-2)[0] > 0


def test_a_seed_decides_everything_that_is_drawn():
    objective, parameters = quadratic(SPECTRUM)
    found = []
    for number, seed in ((5, 0), (6, 0), (6, 1)):
        torch.manual_seed(number)
        density = spectral_density(objective, parameters, lanczos=5, seed=seed).density
        found.append((hessian_trace(objective, parameters, vectors=3, seed=seed), density.tolist()))
    assert found[0] == found[1] and all(a != b for a, b in zip(*found[1:], strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o, p: top_eigenvalues(o, p, k=0), "k must be in 1..20, the number of parameters, got 0"),
        (lambda o, p: top_eigenvalues(o, p, k=21), "got 21"),
        (lambda o, p: hessian_trace(o, p, vectors=0), "vectors must be 1 or more, got 0"),
        (lambda o, p: spectral_density(o, p, lanczos=21), "lanczos must be in 2..20"),
    ],
)
def test_wrong_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*quadratic(SPECTRUM))


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    with pytest.raises(ImportError, match=r"need scipy.*pip install torch-esam\[analysis\]"):
        top_eigenvalues(*quadratic(SPECTRUM))
