"""Does `esam analyze` tell of a real run what the functions tell, and leave the run as it was?"""

import json

import pytest
import torch
from conftest import contents

from esam.analysis import m_sharpness, sharpness, top_eigenvalues
from esam.cli import main
from esam.train.loaded_run import figures, load_run

SMALL = ["--images", "60"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny trained run, made by the trainer's own command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COLUMNS", "300")
        folder = tmp_path_factory.mktemp("runs") / "tiny"
        words = "train --data digits --model mlp --method sam --train-size 100 --batch-size 50 --epochs 2 --threads 1"
        assert main([*words.split(), "--out", str(folder)]) == 0
        yield folder


@pytest.fixture
def esam(capsys):
    def command(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return command


def test_the_figures_are_those_of_the_functions_on_the_trained_weights(run):
    trained = load_run(run)
    objective, theta = trained.objective(images=60), dict(trained.model.named_parameters())
    found = figures(objective, rho=0.1, eigenvalues=1)
    state = torch.load(run / "checkpoint.pt", weights_only=True)["model"]
    assert all(torch.equal(value, state[name]) for name, value in trained.model.state_dict().items())
    assert objective.count == 60 and trained.epoch == 2
    assert found["sharpness"]["value"] == sharpness(objective, theta, rho=0.1)
    assert found["m_sharpness"]["value"] == m_sharpness(objective, theta, rho=0.1, m=128)
    assert found["eigenvalues"] == top_eigenvalues(objective, theta)
    assert found["ascent_sharpness"]["value"] >= found["sharpness"]["value"] > 0


def test_over_all_images_the_loss_and_the_sharpness_are_those_of_the_record(run):
    record = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()][-1]
    objective = load_run(run).objective()
    found = figures(objective, eigenvalues=0)
    assert objective.count == 100
    assert found["loss"] == pytest.approx(record["train_loss"], rel=1e-4)
    assert found["sharpness"]["value"] == pytest.approx(record["sharpness"], rel=1e-4)
    assert "trace" not in found


def test_the_command_prints_writes_and_draws(run, esam, tmp_path):
    before = contents(run)
    out = tmp_path / "deep" / "figures"
    words = ["--eigenvalues", 2, "--landscape", 3, "--out", out]
    code, told, _ = esam("analyze", run, *SMALL, *words)
    assert code == 0
    for phrase in (
        "SAM, seed 0, epoch 2, 60 training images",
        "R_S (rho 0.05)",
        "m 128",
        "10 steps",
        "eigenvalues",
        "±",
    ):
        assert phrase in told
    result = json.loads((out / "analysis.json").read_text())
    assert result["run"]["method"] == "sam" and result["environment"]["torch"]
    assert len(result["eigenvalues"]) == 2 and result["trace"]["vectors"] == 10
    groups = result["landscape"]["groups"]
    assert [len(group) for group in groups] == [9]
    assert groups[0][4] == pytest.approx(result["loss"], rel=1e-5)  # the middle is theta
    assert {path.name for path in out.iterdir()} == {"contour.svg", "contour.png", "landscape.json", "analysis.json"}
    written = contents(out)
    assert esam("analyze", run, *SMALL, *words)[0] == 0 and contents(out) == written  # the kept values, read again
    assert contents(run) == before
