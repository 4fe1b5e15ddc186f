"""Is what is wrong with data, model and folders named before the first step, with its place and a remedy?"""

import dataclasses
import sys

import pytest
import torch
from picture_makers import class_folders
from torch import nn

import esam
from esam.cli import main
from esam.runs import PlannedRun
from esam.runs.preflight import check
from esam.train import Config, Task
from esam.train.config import suited
from esam.train.task import user_code_line

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
CODE = """
import torch
from torch import nn
from esam.train import Task
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
def task(): return Task((X[:30], Y[:30]), (X[30:], Y[30:]))
def nan():
    bad = X.clone(); bad[7, 3] = float("nan")
    return Task((bad[:30], Y[:30]), (X[30:], Y[30:]))
def rows():
    bad = X.clone(); bad[7, 3] = float("inf")
    return Task(list(zip(bad[:30], Y[:30])), (X[30:], Y[30:]))
def pair(): return (X[:30], Y[:30]), (X[30:], Y[30:])
def untested(): return Task((X, Y), (X[Y == 0], Y[Y == 0]))
def unnamed(): return Task((X, Y), (X, Y), classes=("left",))
def net(): return nn.Linear(6, 2)
def narrow(): return nn.Linear(6, 1)
def unseeded():
    torch.manual_seed(unseeded.calls); unseeded.calls += 1
    return nn.Linear(6, 2)
unseeded.calls = 0
class Pair(nn.Module):
    def __init__(self):
        super().__init__(); self.layer = nn.Linear(6, 2)
    def forward(self, x): return self.layer(x), x
class Late(nn.Module):
    def __init__(self):
        super().__init__(); self.layer, self.calls = nn.Linear(6, 2), 0
    def forward(self, x):
        self.calls += self.training
        if self.calls > 3: raise KeyError("too late")
        return self.layer(x)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of one's own in the working folder."""
    (tmp_path / "mine_for_preflight.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "mine_for_preflight"
    sys.modules.pop("mine_for_preflight", None)


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        ("nan", "net", r"the train inputs hold 1 values .* the first \(nan\) in sample 7, column 3; remove or replace"),
        ("rows", "net", r"the first \(inf\) in sample 7, column 3"),
        ("task", "narrow", "the model has 1 outputs, and the labels go up to 1: give it 2 outputs"),
        ("task", "unseeded", "begins with other weights when it is built again after the same seed"),
        ("task", "Pair", "the model returns a tuple; return a tensor, or an object that has logits"),
        ("unnamed", "net", "the train labels go up to 1, and classes names 1; give a name for each class"),
    ],
)
def test_what_does_not_go_together_is_named_before_anything_runs(mine, tmp_path, data, model, message):
    config = Config(data=f"{mine}:{data}", model=f"{mine}:{model}", method="base", threads=1, batch_size=8)
    with pytest.raises(ValueError, match=message):
        check([PlannedRun(config, tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_a_class_that_is_not_tested_is_warned_of(mine, tmp_path):
    config = Config(data=f"{mine}:untested", model=f"{mine}:net", method="base", threads=1)
    with pytest.warns(UserWarning, match="the test data hold no sample of 1: the test accuracy says nothing"):
        check([PlannedRun(config, tmp_path)])


def test_from_python_the_same_is_refused(tmp_path):
    bad = X.clone()
    bad[3, 1] = float("nan")
    for train, build, message in (
        ((bad, Y), lambda: nn.Linear(6, 2), "in sample 3, column 1"),
        ((X, Y), lambda: nn.Linear(6, 1), "give it 2 outputs"),
    ):
        with pytest.raises(ValueError, match=message):
            esam.compare(build, train, (X, Y), out=tmp_path / "out", tell=None, epochs=1, batch_size=8)
    with pytest.raises(ValueError, match="give a name for each class"):
        Task((X, Y), (X, Y), classes=("left",))


def test_results_never_go_into_the_data(tmp_path, monkeypatch, capsys):
    photos = class_folders(tmp_path / "photos", {"cats": 6, "dogs": 4})
    monkeypatch.chdir(photos)
    for command in ("train", "compare"):
        assert main([command, "--data", ".", "--model", "mlp", "--epochs", "1"]) == 1
        assert "is inside the data folder ., where results would be taken for pictures" in capsys.readouterr().err
    (photos / "runs").mkdir()
    (photos / "runs" / "record.jsonl").touch()
    assert main(["train", "--data", ".", "--model", "mlp", "--epochs", "1", "--out", str(tmp_path / "out")]) == 1
    assert "runs holds runs of esam and no pictures; move it out of the data folder" in capsys.readouterr().err


def test_pictures_that_memory_cannot_hold_are_refused_before_they_are_decoded(tmp_path, monkeypatch, capsys):
    photos = class_folders(tmp_path / "photos", {"cats": 6, "dogs": 4})
    words = ["train", "--data", str(photos), "--model", "mlp", "--epochs", "1", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("esam.train.datasets.available_memory", lambda: 10_000)
    assert main([*words, "--size", "100"]) == 1
    assert "one picture of 100x100 takes 0.0 GB" in capsys.readouterr().err
    monkeypatch.setattr("esam.train.datasets.available_memory", lambda: 100_000)
    assert main([*words, "--batch-size", "1000"]) == 1
    assert "a batch of 1000 inputs takes 0.0 GB and there are 0.0 GB; lower" in capsys.readouterr().err


def test_an_error_in_a_users_own_model_keeps_its_file_and_line(mine, tmp_path, capsys):
    words = [
        "--data",
        f"{mine}:task",
        "--model",
        f"{mine}:Late",
        "--batch-size",
        "10",
        "--epochs",
        "3",
        "--threads",
        "1",
    ]
    line = 1 + CODE.splitlines().index('        if self.calls > 3: raise KeyError("too late")')
    place = f"at line {line} of {tmp_path / 'mine_for_preflight.py'}"
    assert main(["train", *words, "--method", "base", "--out", str(tmp_path / "one")]) == 1
    assert f"KeyError {place}: 'too late'" in capsys.readouterr().err
    assert main(["compare", *words, "--methods", "base", "--seeds", "0", "--out", str(tmp_path / "many")]) == 1
    assert f"KeyError: 'too late' {place}" in capsys.readouterr().err
    try:
        torch.zeros(2) @ torch.zeros(3)
    except RuntimeError as error:
        assert f"of {__file__}" in user_code_line(error)  # inside torch: where it was called


def test_commands_start_with_the_recommended_method_and_suit_the_length_to_the_data(mine, tmp_path, capsys):
    assert Config().method == esam.RECOMMENDED
    words = ["--data", f"{mine}:task", "--model", f"{mine}:net", "--print-config"]
    for asked, expected in (
        ([], ("batch_size = 16", "epochs = 200")),
        (["--batch-size", "10"], ("batch_size = 10", "epochs = 200")),
        (["--epochs", "7"], ("batch_size = 16", "epochs = 7")),
    ):
        assert main(["train", *words, *asked]) == 0
        printed = capsys.readouterr().out
        assert all(line in printed for line in expected), printed
    large = suited(Config(), 50_000)
    assert (large.batch_size, large.epochs) == (128, 30)
    tiny = suited(dataclasses.replace(Config(), batch_size=5), 40, batch_size=False)
    assert (tiny.batch_size, tiny.epochs) == (5, 125)


@pytest.mark.parametrize("seed", [2**63, 99999999999999999999999])
def test_a_seed_that_no_generator_takes_is_refused(tmp_path, seed):
    with pytest.raises(ValueError, match="seed must be at most"):
        Config(seed=seed).check()
