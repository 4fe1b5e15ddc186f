"""Do options in a file do what the same options do when they are typed?"""

import sys

import pytest

from esam.cli import main
from esam.cli.configfile import toml_lines
from esam.recipes import RECIPES
from esam.train.record import read_record

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def printed(capsys, *words):
    assert main([*words, "--print-config"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["train"],
        ["train", "--method", "sam", "--rho", "0.2", "--notes", 'a "remark"', "über alles", "--track", "wandb"],
        ["train", "demo", "--method", "esam-swp"],
        ["compare", "--methods", "base", "sam", "--seeds", "3", "--set", "sam.rho=0.1", "--validation", "--lr", "1e-9"],
        ["compare", "demo", "--jobs", "2"],
    ],
)
def test_what_is_printed_as_a_file_comes_to_the_same_options(capsys, tmp_path, words):
    text = printed(capsys, *words)
    (tmp_path / "run.toml").write_text(text)
    assert printed(capsys, words[0], "--config", str(tmp_path / "run.toml")) == text
    assert tomllib.loads(text)["epochs"] == (40 if "demo" in words else 30)


def test_the_file_wins_over_a_recipe_and_what_is_typed_over_the_file(capsys, tmp_path):
    (tmp_path / "run.toml").write_text("epochs = 3\nlabel-noise = 0.1\nvalidation = true\n")
    words = ["train", "demo", f"--config={tmp_path / 'run.toml'}", "--epochs", "4", "--no-validation"]
    asked = tomllib.loads(printed(capsys, *words))
    assert (asked["epochs"], asked["label_noise"], asked["validation"]) == (4, 0.1, False)
    assert asked["lr"] == RECIPES["demo"]().config.lr and asked["rho"] == 0.1


def test_the_methods_own_defaults_are_said_and_another_method_can_still_be_named(capsys, tmp_path):
    text = printed(capsys, "train", "--method", "esam")
    assert "# gamma = 0.5  # esam's own default" in text and "gamma" not in tomllib.loads(text)
    (tmp_path / "run.toml").write_text(text)
    other = printed(capsys, "train", "--config", str(tmp_path / "run.toml"), "--method", "sam")
    assert tomllib.loads(other)["method"] == "sam" and "gamma" not in other


def test_a_run_of_a_file_is_the_run_that_the_file_asks_for(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = 'model = "mlp"\nmethod = "sam"\nrho = 0.3\ntrain_size = 100\nepochs = 1\nthreads = 1\n'
    (tmp_path / "run.toml").write_text(f'{words}out = "here"\nquiet = true\n')
    assert main(["train", "--config", "run.toml"]) == 0
    config = read_record(tmp_path / "here" / "record.jsonl").config
    assert (config["method"], config["settings"], config["train_size"]) == ("sam", {"rho": 0.3}, 100)
    assert capsys.readouterr().out.count("\n") == 1


def test_every_kind_of_value_survives_toml():
    values = {"a": 1, "b": 1e30, "c": -0.5, "d": True, "e": 'q"\\\n', "f": ("x", "y"), "g": None, "h": 10**20}
    text = "\n".join(toml_lines(values))
    assert tomllib.loads(text) == {
        k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None
    }
