"""Is what is wrong with data, model and folders named before the first step, with its place and a remedy?"""

import dataclasses
from pathlib import Path

import my_parts
import pytest
import torch
from picture_makers import class_folders

import esam
from esam.cli import main
from esam.cli.parsing import parse_run
from esam.cli.train import TrainOptions
from esam.runs import PlannedRun
from esam.runs.preflight import check
from esam.runs.worker import failure_line
from esam.train import Config


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        ("infinite_row", "net", r"\(inf\) in sample 7, column 3"),
        ("classes", "unseeded", "other weights .* after the same seed"),
        ("classes", "TwoAnswers", "the model returns a tuple"),
    ],
)
def test_what_does_not_go_together_is_named_before_anything_runs(tmp_path, data, model, message):
    config = Config(data=f"my_parts:{data}", model=f"my_parts:{model}", method="base", threads=1, batch_size=8)
    with pytest.raises(ValueError, match=message):
        check([PlannedRun(config, tmp_path / "run")], tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_class_that_is_not_tested_is_warned_of(tmp_path):
    config = Config(data="my_parts:untested", model="my_parts:net", method="base", threads=1)
    with pytest.warns(UserWarning, match="hold no sample of 2"):
        check([PlannedRun(config, tmp_path)], tmp_path)


def test_results_never_go_into_the_data(tmp_path, monkeypatch, capsys):
    photos = class_folders(tmp_path / "photos", {"cats": 6, "dogs": 4})
    monkeypatch.chdir(photos)
    assert main(["compare", "--data", ".", "--model", "mlp", "--epochs", "1"]) == 1
    assert "inside the data folder" in capsys.readouterr().err
    (photos / "runs").mkdir()
    (photos / "runs" / "record.jsonl").touch()
    assert main(["train", "--data", ".", "--model", "mlp", "--epochs", "1", "--out", str(tmp_path / "out")]) == 1
    assert "runs holds runs of esam" in capsys.readouterr().err


def test_pictures_that_memory_cannot_hold_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    photos = class_folders(tmp_path / "photos", {"cats": 6, "dogs": 4})
    config = Config(data=str(photos), model="mlp", method="base", size=100, batch_size=1, threads=1)
    with monkeypatch.context() as patch:
        patch.setattr("esam.train.pictures.Decoder.decode_all", lambda *_: pytest.fail("decoded"))
        patch.setattr("esam.train.datasets.available_memory", lambda: 10_000)
        with pytest.raises(ValueError, match=r"caching 10 pictures takes .* lower size"):
            check([PlannedRun(config, tmp_path / "run")], tmp_path)
    monkeypatch.setattr("esam.train.datasets.available_memory", lambda: 100_000)
    with pytest.raises(ValueError, match=r"a batch of 1000 inputs takes .* lower batch_size"):
        check([PlannedRun(dataclasses.replace(config, size=None, batch_size=1000), tmp_path / "run")], tmp_path)


def test_an_error_in_a_users_own_model_keeps_its_file_and_line(tmp_path, capsys):
    words = "train --data my_parts:classes --model my_parts:Late --method base --batch-size 10 --epochs 3 --threads 1"
    assert main([*words.split(), "--out", str(tmp_path / "one")]) == 1
    lines = Path(my_parts.__file__).read_text().splitlines()
    number = 1 + lines.index('            raise KeyError("too late")')
    assert f"KeyError at line {number} of {my_parts.__file__}" in capsys.readouterr().err
    try:
        torch.zeros(2) @ torch.zeros(3)
    except RuntimeError as error:
        assert f"of {__file__}" in failure_line(error)  # inside torch: where it was called


def test_commands_start_with_the_recommended_method_and_suit_the_length_to_the_data():
    assert Config().method == esam.RECOMMENDED
    words = ["--data", "my_parts:classes", "--model", "my_parts:net"]
    for asked, expected in (([], (16, 200)), (["--batch-size", "10"], (10, 200)), (["--epochs", "7"], (16, 7))):
        config = parse_run("train", TrainOptions, [*words, *asked])[1].config
        assert (config.batch_size, config.epochs) == expected
