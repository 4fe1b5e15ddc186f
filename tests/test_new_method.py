"""Adding a method is one file and one row of the registry: the rest of the package finds it there."""

import dataclasses

import pytest
import torch
from conftest import problem
from torch import nn
from toy_method import StretchedSAM

from esam import METHODS, SAM
from esam.bench.steps import contender
from esam.cli import main
from esam.cli.parsing import parse_run, settings_by_method, single_run
from esam.cli.train import TrainOptions
from esam.optim import Method
from esam.runs.plan import Comparison, plan
from esam.styles import styles
from esam.train.config import Config


@pytest.fixture(autouse=True)
def row(monkeypatch):
    row = Method(
        "Stretched SAM", "Twice as far.", StretchedSAM, "#123456", lambda settings: 6 + settings["stretch"] / 100
    )
    monkeypatch.setitem(METHODS, "toy", row)
    return row


def test_it_is_built_by_its_row_and_takes_its_step():
    p, q = problem(), problem()
    p.step(METHODS["toy"](torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, rho=0.1, stretch=3.0))
    q.step(SAM(torch.optim.SGD(q.model.parameters(), lr=0.1), q.model, rho=0.3))
    for a, b in zip(p.weights, q.weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_the_command_line_lists_it_with_its_cost_and_its_settings(capsys):
    assert main(["methods"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("toy "))
    assert " ".join(line.split()) == "toy 2.01 Stretched SAM: Twice as far."
    assert main(["methods", "toy"]) == 0
    assert "--stretch" in capsys.readouterr().out
    _, comparison, typed = parse_run("train", TrainOptions, ["--method", "toy", "--stretch", "0.5"])
    assert single_run(comparison, typed).settings == {"stretch": 0.5}
    assert settings_by_method(("toy.stretch=0.5",)) == {"toy": {"stretch": 0.5}}


def test_the_bench_times_it():
    found = contender("toy")
    assert found.units == 6.02
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    found.build(model, torch.randn(6, 4), torch.randint(0, 3, (6,)))()
    assert not torch.equal(model.weight, before)


def test_a_comparison_plans_it_with_its_own_setting_in_its_identity(tmp_path):
    config = Config(settings={"stretch": 0.5, "gamma": 0.3})  # gamma is another method's
    (run,) = plan(Comparison(config, methods=("toy",), seeds=(0,)), tmp_path)
    assert (run.config.method, run.config.settings) == ("toy", {"stretch": 0.5})
    default, same, other = (
        dataclasses.replace(run.config, settings=own).id() for own in ({}, {"stretch": 2.0}, {"stretch": 0.5})
    )
    assert default == same != other


def test_the_report_draws_it_in_its_rows_colour(row):
    found = styles({"Stretched SAM": "toy", "SAM": "sam"})
    assert [one.colour for one in found.values()] == [row.colour, METHODS["sam"].colour]


@pytest.mark.parametrize(
    ("name", "given", "units"),
    [
        ("base", {}, 3.0),
        ("base-part", {"gamma": 0.25}, 3 * 0.25),
        ("sam", {}, 6.0),
        ("looksam", {"k": 4}, 3 + 3 / 4),
        ("esam", {"beta": 0.4, "gamma": 0.25}, 1 + (1 + 0.4) + 1 + 3 * 0.25),
        ("esam-swp", {}, 1 + (1 + 0.6) + 3),  # nothing to rank
        ("esam-random", {}, 1 + 2 * 0.6 + 3 * 0.5),  # backward stops early, in both of its parts
    ],
)
def test_a_row_counts_what_its_step_costs(name, given, units):
    assert METHODS[name].units(given) == pytest.approx(units, abs=1e-12)


def test_a_setting_without_effect_is_no_part_of_what_counts():
    assert METHODS["esam-swp"].effective({"ranking": "random"}) == METHODS["esam-swp"].effective()
    assert METHODS["esam-sds"].effective({"norm": "selected"}) == METHODS["esam-sds"].effective()
    assert METHODS["esam"].effective({"norm": "selected"}) != METHODS["esam"].effective()
    assert "seed" not in METHODS["esam"].options()
