"""README code is code."""

import re
import textwrap
from pathlib import Path

import pytest
import torch

from esam import METHODS
from esam.optim import registry
from esam.report import summarise
from esam.report.results import results_sheet
from esam.report.sheets import as_markdown
from esam.train.record import read_records

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SHOWN = ("Test acc., %", "Best, %", "Train acc., %", "Sharpness", "Forward", "Backward")


def test_the_readmes_loop_runs_and_learns():
    torch.manual_seed(0)
    x = torch.randn(96, 64)
    loader = [(x[i : i + 32], x[i : i + 32, :10].argmax(1)) for i in (0, 32, 64)]
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    scope = {"loader": loader}
    exec(code, scope)
    assert scope["loss"] < 0.5
    assert len([line for line in code.split("\n\n", 1)[1].splitlines() if line.strip()]) <= 12


def test_every_method_of_the_registry_stands_in_the_readme():
    rows = re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)
    assert rows == list(registry.METHODS)
    assert METHODS is registry.METHODS


def test_the_readmes_clipping_hook_clips():
    hook = textwrap.dedent(re.search(r"```python\n(  def clip.*?)```", README, re.DOTALL).group(1))
    model = torch.nn.Linear(2, 2)
    optimizer = METHODS["sam"](torch.optim.SGD(model.parameters(), lr=0.1), model)
    exec(hook, {"optimizer": optimizer, "torch": torch, "model": model})
    optimizer.step(lambda keep: 1e3 * model(torch.ones(4, 2)[keep]).sum(1))
    assert torch.cat([p.grad.flatten() for p in model.parameters()]).norm() < 1.001


def test_the_readmes_fit_trains_a_users_own_model(capsys):
    torch.manual_seed(0)
    x = torch.randn(64, 5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=16)
    model = torch.nn.Linear(5, 2)
    optimizer = METHODS["esam"](torch.optim.SGD(model.parameters(), lr=0.5), model)
    code = re.search(r"```python\n(from esam.train.*?)```", README, re.DOTALL).group(1)
    scope = {"model": model, "optimizer": optimizer, "loader": loader, "test_loader": loader}
    exec(code, scope)
    assert scope["progress"].epoch == 10
    assert scope["progress"].best > 0.9
    assert capsys.readouterr().out.count("test_accuracy") == 10


def test_the_readmes_analysis_runs_on_a_users_own_model(tmp_path, capsys):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    batches = [(torch.randn(32, 5), torch.randint(0, 2, (32,))) for _ in range(2)]
    code = re.search(r"```python\n(from esam.analysis.*?)```", README, re.DOTALL).group(1)
    exec(code, {"model": model, "batches": batches, "folder": tmp_path})
    first, second = capsys.readouterr().out.splitlines()
    assert all(float(number) > 0 for number in first.split()) and second.count(",") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"plane.json", "plane.svg"}


@pytest.mark.parametrize("folder", ["cifar10/runs", "demo"])
def test_the_readmes_results_are_those_of_the_committed_records(folder):
    for here in summarise(read_records(ROOT / "results" / folder)).values():
        assert all(row.n == 3 and not row.group.unfinished for row in here)
        assert as_markdown(results_sheet(here, columns=SHOWN)) in README
