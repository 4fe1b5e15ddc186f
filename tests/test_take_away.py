"""Can a trained model be taken away: kept, loaded, asked about new files, and given to another program?"""

import csv
import dataclasses
import json
import os

import my_parts
import pytest
import torch
from picture_makers import class_folders, picture
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import esam
from esam.cli import main
from esam.train import Checkpoint, Config, run
from esam.train.build import build_parts
from esam.train.evaluation import evaluate
from esam.train.loaded_run import export_weights
from esam.train.predict import predictions
from esam.train.record import RECORD_NAME

TINY = Config(data="digits", model="mlp", method="base", train_size=200, batch_size=50, epochs=3, threads=1)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A run on pictures of two colours and many sizes, and the folder of the pictures."""
    place = tmp_path_factory.mktemp("photos")
    class_folders(place / "photos", {"dark": 5, "light": 5}, size=(20, 16))
    for number in range(5):
        picture(20 + number, (18, 24)).save(place / "photos" / "light" / f"{number:03}.png")
    config = dataclasses.replace(TINY, data=str(place / "photos"), train_size=None, size=8, lr=0.02, epochs=8)
    run(config, place / "run")
    return place / "run", place / "photos"


# Kept ----------------------------------------------------------------------------------------------------------------


def test_the_weights_of_a_run_are_those_that_were_evaluated(tmp_path):
    record = run(dataclasses.replace(TINY, method="base-ema"), tmp_path)
    loaded = esam.load_run(tmp_path)
    assert loaded.epoch == 3 and not loaded.model.training
    parts = build_parts(TINY)
    assert evaluate(loaded.model, parts.test)["test_loss"] == record.epochs[-1]["test_loss"]
    of_average = evaluate(loaded.model, parts.ordered)["test_loss"]
    objective = loaded.objective()
    assert float(objective(objective.parameters)) == pytest.approx(of_average, rel=1e-4)
    assert of_average == pytest.approx(record.end["train_loss"], rel=1e-6)
    loaded.model.load_state_dict(Checkpoint(tmp_path).load()["model"])
    assert evaluate(loaded.model, parts.ordered)["test_loss"] < 0.99 * of_average  # it lags behind


# Loaded --------------------------------------------------------------------------------------------------------------


def test_pictures_are_prepared_as_for_training(photos):
    folder, pictures = photos
    loaded = esam.load_run(folder)
    parts = build_parts(Config.from_json(loaded.record.config))
    x = torch.cat([x for x, _ in parts.ordered] + [x for x, _ in parts.test])
    mine = loaded.read(sorted(pictures.rglob("*.png")))
    assert mine.shape == (10, 3, 8, 8) and loaded(mine).argmax(1).tolist() == [0] * 5 + [1] * 5
    assert sorted(row.flatten().tolist() for row in x) == sorted(row.flatten().tolist() for row in mine)


def test_a_function_that_a_record_names_is_not_run_unless_it_is_given(tmp_path, monkeypatch):
    run(TINY, tmp_path)
    path = tmp_path / RECORD_NAME
    path.write_text(path.read_text().replace('"model": "mlp"', '"model": "os:abort"', 1))
    with pytest.raises(ValueError, match="os:abort, a function of your own, .* no reason to run it"):
        esam.load_run(tmp_path)
    path.write_text(
        path.read_text().replace('"model": "os:abort", ', '"model": "mlp", ').replace('"digits"', '"os:abort"', 1)
    )
    with pytest.raises(ValueError, match="was made with os:abort, a function of your own, .* no reason to run it"):
        esam.load_run(tmp_path).objective()


def test_weights_of_another_model_are_refused_by_name(tmp_path):
    run(TINY, tmp_path)
    with pytest.raises(ValueError, match=r"are not those of this model; .*Missing key\(s\)"):
        esam.load_run(tmp_path, build_model=lambda: nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "checkpoint.pt").unlink(), "holds no weights"),
        (lambda folder: (folder / RECORD_NAME).unlink(), "holds no record.jsonl; give the folder of a run"),
    ],
)
def test_a_damaged_folder_is_refused_with_a_reason(tmp_path, damage, message):
    run(dataclasses.replace(TINY, epochs=1), tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        esam.load_run(tmp_path)


# Asked ---------------------------------------------------------------------------------------------------------------


def test_predict_writes_a_class_for_each_picture_as_csv_and_json(photos, tmp_path, capsys):
    folder, pictures = photos
    light = sorted((pictures / "light").iterdir())
    assert main(["predict", str(folder), *map(str, light)]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["file"] for row in rows] == list(map(str, light)) and {row["class"] for row in rows} == {"light"}
    assert main(["predict", str(folder), str(pictures), "--out", str(tmp_path / "p.json")]) == 0  # a folder
    found = json.loads((tmp_path / "p.json").read_text())
    assert len(found) == 10 and all(sum(one["probabilities"].values()) == pytest.approx(1) for one in found)
    assert all(one["probability"] == max(one["probabilities"].values()) for one in found)


def test_a_picture_that_cannot_be_read_costs_no_other_its_prediction(photos, tmp_path, capsys):
    folder, pictures = photos
    (tmp_path / "broken.png").write_bytes(b"no picture")
    files = [tmp_path / "broken.png", tmp_path / "nowhere.png", pictures / "dark" / "000.png"]
    assert main(["predict", str(folder), *map(str, files)]) == 1
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["class"] for row in rows] == ["", "", "dark"]
    assert all("cannot read" in row["error"] for row in rows[:2])
    assert "2 of 3 have no prediction, the first: cannot read" in err


def test_a_name_that_is_no_utf_8_costs_no_prediction(photos, tmp_path):
    folder, pictures = photos
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    odd.write_bytes((pictures / "dark" / "000.png").read_bytes())
    for ending, name in ((".csv", b"caf\xe9.png"), (".json", b"caf?.png")):
        out = (tmp_path / "p").with_suffix(ending)
        assert main(["predict", str(folder), str(odd), "--out", str(out)]) == 0 and name in out.read_bytes()


def test_a_run_on_other_data_than_pictures_says_how_it_is_used(tmp_path):
    config = Config(data="my_parts:numbers", model="my_parts:line", method="base", lr=0.05, epochs=1, threads=1)
    run(config, tmp_path / "run")
    loaded = esam.load_run(tmp_path / "run", build_model=my_parts.line)
    (refused,) = predictions(loaded, [tmp_path / "new.txt"])
    assert "esam.load_run" in refused["error"]
    assert loaded(my_parts.X[:3]).shape == (3, 1)


# Exported ------------------------------------------------------------------------------------------------------------


def test_exported_weights_load_by_safetensors_alone_and_carry_classes_and_normalisation(photos, tmp_path):
    out = tmp_path / "weights.safetensors"
    assert main(["export", str(photos[0]), str(out)]) == 0
    loaded = esam.load_run(photos[0])
    tensors = load_file(out)
    assert tensors.keys() == loaded.model.state_dict().keys()
    assert all(torch.equal(tensors[name], value) for name, value in loaded.model.state_dict().items())
    with safe_open(out, "pt") as file:
        told = json.loads(file.metadata()["esam"])
    assert told["classes"] == ["dark", "light"] and told["mean"] == loaded.record.data["mean"]


def test_tied_weights_are_exported_under_each_of_their_names(tmp_path):
    run(dataclasses.replace(TINY, epochs=1), tmp_path)
    state = Checkpoint(tmp_path).load()
    state["model"]["again"] = state["model"]["1.weight"]
    Checkpoint(tmp_path).save(state)
    export_weights(tmp_path, tmp_path / "tied.safetensors")
    tensors = load_file(tmp_path / "tied.safetensors")
    assert torch.equal(tensors["again"], tensors["1.weight"])
