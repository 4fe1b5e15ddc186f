"""The doctor: does it report what a run's first steps show, and write nothing?"""

import torch
from conftest import problem

from esam import SAM
from esam.analysis.doctor import watching
from esam.cli import main


def test_steps_inside_the_block_are_monitored_and_those_outside_are_not():
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, rho=10.0)
    before = optimizer.monitor
    with watching(optimizer) as monitor:
        for _ in range(2):
            p.step(optimizer)
    p.step(optimizer)
    assert monitor.steps == 2 and optimizer.monitor is before
    assert [finding.remedy for finding in monitor.findings()] == ["divide rho by 100 or so"]


def test_the_command_shows_what_it_finds_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "demo", "--method", "sam", "--steps", "2", "--rho", "100"]) == 0
    shown = capsys.readouterr().out
    assert "2 steps; ||eps|| / ||theta|| from" in shown and "very long" in shown and "remedy: divide rho by" in shown
    assert main(["doctor", "demo", "--method", "sam", "--steps", "2"]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
