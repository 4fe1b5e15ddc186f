"""The doctor: does watching change nothing, and is each finding there when its cause is, and only then?"""

import pytest
import torch
from conftest import EVERY_ROW, mlp, normalised, problem
from torch import nn

from esam import METHODS, SAM
from esam.analysis.doctor import watching
from esam.cli import main
from esam.optim import guidance


def start(name, build=mlp, batch=12, **settings):
    p = problem(build, batch=batch)
    return p, METHODS[name](torch.optim.SGD(p.model.parameters(), lr=0.05, momentum=0.9), p.model, seed=3, **settings)


def watched(name, build=mlp, steps=6, batch=12, samples=None, **settings):
    p, optimizer = start(name, build, batch, **settings)
    with watching(optimizer) as watch:
        for _ in range(steps):
            if samples is not None:
                watch.samples(samples)
            optimizer.step(p.closure)
    return watch


def signs(watch):
    return " | ".join(str(finding) for finding in watch.findings())


@pytest.mark.parametrize("name", EVERY_ROW)
def test_watched_steps_are_the_same_steps_bit_for_bit(name):
    (p, one), (q, other) = start(name, normalised), start(name, normalised)
    for o, t in ((one, p), (other, q)):
        torch.manual_seed(1)
        if o is one:
            with watching(o) as watch:
                for _ in range(4):
                    o.step(t.closure)
        else:
            for _ in range(4):
                o.step(t.closure)
    torch.testing.assert_close(p.model.state_dict(), q.model.state_dict(), rtol=0, atol=0)
    assert watch.steps == 4
    assert not {"ascent", "select", "after_step"} & vars(one).keys()


def test_the_ratio_is_that_of_the_lengths_and_a_long_one_is_found():
    """A weight of 2, rho = 0.5: the ratio is a quarter."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 2.0)
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.0), model, rho=0.5)
    with watching(optimizer) as watch:
        optimizer.step(lambda keep: model(torch.ones(3, 1, dtype=torch.float64)[keep]).squeeze(1).square())
    assert watch.ratios == pytest.approx([0.25], abs=1e-12)
    assert "very long for this model: ||eps|| / ||theta|| = 0.2" in signs(watch) and "divide rho by 10" in signs(watch)


def test_a_short_perturbation_and_none_at_all_are_told_apart():
    assert "very short" in signs(watched("sam", rho=1e-7)) and "multiply rho by 10" in signs(watched("sam", rho=1e-6))
    assert "no step can be perturbed, for rho is 0" in signs(watched("sam", rho=0.0))
    late = signs(watched("sam-late", total_steps=1000))
    assert "perturbs nothing in its next 744 steps" in late and "total_steps counts its steps, not its epochs" in late


def test_a_first_gradient_without_direction_is_counted():
    p, optimizer = start("sam")
    with watching(optimizer) as watch:
        optimizer.step(lambda keep: p.closure(keep) * 0)
        optimizer.step(p.closure)
    assert "zero, inf or NaN in 1 of 2 steps" in signs(watch)


def test_batchnorm_with_a_few_kept_samples_is_found_and_with_many_is_not():
    assert "BatchNorm normalises by 6 samples in the second pass, of 12" in signs(watched("esam", normalised))
    assert "BatchNorm" not in signs(watched("esam", normalised, batch=16))
    assert "BatchNorm" not in signs(watched("esam", mlp))
    assert "BatchNorm normalises by 2 samples" in signs(watched("slicesam", normalised, radius="constant"))


def test_weights_in_low_precision_are_found():
    model = mlp(torch.bfloat16)
    with watching(SAM(torch.optim.SGD(model.parameters(), lr=0.1), model)) as watch:
        pass
    assert "6 weights are kept in torch.bfloat16" in signs(watch)


def test_samples_that_a_ranking_keeps_each_time_are_listed_and_chance_is_not():
    def stubborn(batch):
        return -torch.arange(len(batch.losses), dtype=torch.float64)  # the first half, whatever happens

    watch = watched("esam", ranking=stubborn, samples=range(100, 112))
    assert watch.suspects() == [100, 101, 102, 103, 104, 105]
    assert "6 of 12, where chance would keep 1" in signs(watch) and "look at their labels (100, 101" in signs(watch)
    assert "again and again" not in signs(watched("esam", ranking="random", samples=range(12), steps=12))
    assert "again and again" not in signs(watched("esam", ranking=stubborn, samples=range(12), steps=3))  # too early


def test_graphs_that_are_compiled_after_the_first_steps_are_found(monkeypatch):
    made = iter([0, 0, 2, 3, 3, 3, 5, 5])
    monkeypatch.setattr(guidance, "graph_count", lambda: next(made))
    assert "torch.compile made 2 graphs after the first 3 steps" in signs(watched("sam"))
    steady = iter([0, 0, 2, 3, 3, 3, 3, 3])
    monkeypatch.setattr(guidance, "graph_count", lambda: next(steady))
    assert "torch.compile" not in signs(watched("sam"))


def test_a_healthy_training_has_no_finding():
    assert watched("sam").findings() == []


def test_the_command_tells_what_it_finds_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "demo", "--method", "sam", "--steps", "2", "--rho", "100"]) == 0
    told = capsys.readouterr().out
    assert "2 steps; ||eps|| / ||theta|| from" in told and "very long" in told and "remedy: divide rho by" in told
    assert main(["doctor", "demo", "--method", "sam", "--steps", "2"]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_no_steps_are_refused(capsys):
    assert main(["doctor", "demo", "--steps", "0"]) == 1
    assert "--steps must be 1 or more, got 0" in capsys.readouterr().err
