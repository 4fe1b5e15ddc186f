"""Are directions and landscapes what their definitions say, and is an interrupted landscape gone on with?"""

import json
import math

import pytest
import torch
from conftest import Interrupted
from torch import nn

from esam.analysis import (
    ModelObjective,
    even_axis,
    filter_normalised,
    gaussian,
    landscape,
    random_plane,
)


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def tanh_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data(count=20):
    torch.manual_seed(1)
    return [(torch.randn(count, 3, 2, 2).double(), torch.randint(0, 3, (count,)))]


# Directions ----------------------------------------------------------------------------------------------------------


def test_filter_normalisation_gives_every_filter_the_norm_of_the_weights_filter():
    torch.manual_seed(0)
    parameters = {"conv": torch.randn(4, 3, 5, 5), "linear": torch.randn(7, 6), "bias": torch.randn(4)}
    raw = gaussian(parameters, seed=3)
    found = filter_normalised(raw, parameters)
    assert not found["bias"].any()
    for name in ("conv", "linear"):
        for i in range(len(parameters[name])):
            by_definition = raw[name][i] / raw[name][i].norm() * parameters[name][i].norm()
            assert torch.allclose(found[name][i], by_definition, rtol=1e-5), (name, i)
    zeros = filter_normalised({"w": torch.zeros(1, 2)}, {"w": torch.ones(1, 2)})
    assert zeros["w"].tolist() == [[0, 0]]


def test_a_seed_decides_a_direction_whatever_the_global_stream():
    parameters = {"w": torch.zeros(5, 4)}
    torch.manual_seed(1)
    one = random_plane(parameters, seed=7)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    other = random_plane(parameters, seed=7)
    assert all(torch.equal(a["w"], b["w"]) for a, b in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


# Landscapes ----------------------------------------------------------------------------------------------------------


def line(objective, theta, direction, *, ts, **more):
    return landscape([(objective, [direction])], theta, [ts], **more)


def saddle(p):
    """L = a^2 + 3 a b - b, of two numbers."""
    return p["a"].square().sum() + 3 * p["a"].sum() * p["b"].sum() - p["b"].sum()


def test_values_on_planes_and_lines_by_hand_and_the_mean_over_groups():
    theta, a, b = {"a": float64(1), "b": float64(2)}, {"a": float64(1)}, {"b": float64(1)}
    # a in (0, 1, 2), b in (2, 4)
    found = landscape([(saddle, [a, b])], theta, [[-1, 0, 1], [0, 2]])
    assert found.losses.tolist() == [[[-2, -4], [5, 9], [14, 24]]] and found.axes == ((-1, 0, 1), (0, 2))
    assert line(saddle, theta, a | b, ts=[-1, 0, 0.5]).losses.tolist() == [[-1, 5, 2.25 + 11.25 - 2.5]]
    two = landscape([(saddle, [a]), (lambda p: 2 * saddle(p), [b])], theta, [[0, 1]])
    assert two.losses.tolist() == [[5, 4 + 12 - 2], [10, 2 * (1 + 9 - 3)]] and two.mean.tolist() == [7.5, 14]


# Interrupted and resumed ---------------------------------------------------------------------------------------------


def stop_at(count):
    def progress(done, _):
        if done >= count:
            raise Interrupted

    return progress


def test_an_interrupted_landscape_goes_on_with_the_same_values(tmp_path):
    objective = ModelObjective(tanh_network(), data())
    theta = objective.parameters
    groups = [(objective, random_plane(theta, seed=seed)) for seed in (0, 1)]
    axes = [even_axis(1.0, 5), even_axis(0.5, 5)]
    path = tmp_path / "deep" / "plane.json"
    with pytest.raises(Interrupted):
        landscape(groups, theta, axes, path=path, progress=stop_at(32))
    kept = [value for row in json.loads(path.read_text())["losses"] for value in row]
    assert 32 <= len(kept) < 50
    seen = []
    resumed = landscape(groups, theta, axes, path=path, progress=lambda *p: seen.append(p))
    assert seen[0][0] > 32 and seen[-1] == (50, 50)  # the missing points alone
    assert torch.equal(resumed.losses, landscape(groups, theta, axes).losses)


def test_losses_that_are_not_finite_survive_the_file(tmp_path):
    theta, path = {"w": float64(1)}, tmp_path / "line.json"
    objective = lambda p: 1 / p["w"].sum() + torch.sqrt(p["w"].sum())  # noqa: E731
    found = [line(objective, theta, {"w": float64(1)}, ts=[-2, -1, 0], path=path).losses[0].tolist() for _ in range(2)]
    for values in found:
        assert math.isnan(values[0]) and values[1:] == [math.inf, 2]


@pytest.mark.parametrize(
    "change",  # weights of the same loss, directions, axes, data
    [{"theta": (2, 1)}, {"direction": (0, 1)}, {"ts": (0, 2)}, {"factor": 2.0}],
)
def test_a_file_of_another_landscape_is_refused(tmp_path, change):
    def drawn(theta=(1, 2), direction=(1, 0), ts=(0, 1), factor=1.0):
        objective = lambda p: factor * p["w"].square().sum()  # noqa: E731
        theta, direction = {"w": float64(*theta)}, {"w": float64(*direction)}
        return line(objective, theta, direction, ts=ts, path=tmp_path / "line.json")

    drawn()
    with pytest.raises(ValueError, match="holds another landscape.*delete it, or choose another file"):
        drawn(**change)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"losses": [[1]]}', '{"losses": null}'])
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path, text):
    path = tmp_path / "line.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="holds no landscape.*delete it"):
        line(saddle, {"a": float64(1), "b": float64(2)}, {"a": float64(1)}, ts=[0, 1], path=path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("groups", "axes", "message"),
    [
        ([], [[0]], "give at least one group"),
        ([(saddle, [{"a": float64(1)}])], [[]], "an axis is empty"),
        ([(saddle, [{"a": float64(1)}])], [[0], [1]], "2 axes need 2 directions, got 1"),
        ([(saddle, [{"c": float64(1)}])], [[0]], "direction's 'c' does not fit"),
        ([(saddle, [{"a": float64(1, 2)}])], [[0]], "direction's 'a' does not fit"),
    ],
)
def test_what_does_not_fit_is_refused(groups, axes, message):
    with pytest.raises(ValueError, match=message):
        landscape(groups, {"a": float64(1), "b": float64(2)}, axes)
