"""Can a result be believed: were these the data, did the loss stay finite, and what was it trained with?"""

import dataclasses
import math
import re

import pytest
import torch
from conftest import contents
from picture_makers import class_folders
from torch import nn

from esam.cli import main
from esam.report.results import results_sheet
from esam.report.settings import common_and_differing
from esam.report.summaries import summarise
from esam.runs import Comparison, plan
from esam.runs.preflight import check
from esam.train import Checkpoint, Config, Task, fit, run
from esam.train.loaded_run import load_run
from esam.train.record import RECORD_NAME
from esam.train.task import data_facts

TINY = Config(data="digits", model="mlp", method="base", train_size=200, batch_size=50, epochs=2, threads=1)
WILD = dataclasses.replace(TINY, lr=1e30, epochs=5)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def photos(tmp_path):
    return class_folders(tmp_path / "photos", {"cats": 6, "dogs": 4})


def trained_on(photos, **changes):
    return dataclasses.replace(TINY, data=str(photos), train_size=None, **changes)


# The data ------------------------------------------------------------------------------------------------------------


def test_a_record_tells_counts_classes_shape_and_normalisation_of_its_data(photos, tmp_path):
    told = run(trained_on(photos), tmp_path / "run").data
    assert (told["train"], told["test"], told["classes"], told["shape"]) == (8, 2, ["cats", "dogs"], [3, 8, 8])
    assert told["of_each_class"] == {"train": [5, 3], "test": [1, 1]}
    assert len(told["mean"]) == len(told["std"]) == 3 and told["mean"][1:] == [0, 1]  # no green, all the blue


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_whose_data_have_changed_is_refused_and_left_as_it_is(photos, tmp_path, finished):
    config = trained_on(photos)

    def stop(metrics):
        if not finished and metrics["epoch"] == 2:
            raise KeyboardInterrupt

    try:
        run(config, tmp_path / "run", watch=stop)
    except KeyboardInterrupt:
        assert not finished
    before = contents(tmp_path / "run")
    (photos / "dogs" / "more.png").write_bytes((photos / "cats" / "000.png").read_bytes())
    with pytest.raises(ValueError, match="data have changed: then 8 training and 2 .* now 9 training and 2"):
        run(config, tmp_path / "run")
    with pytest.raises(ValueError, match="data have changed: then 8"):
        load_run(tmp_path / "run").objective()
    assert contents(tmp_path / "run") == before


def test_a_comparison_of_changed_data_is_refused_before_anything_runs(photos, tmp_path):
    runs = plan(Comparison(trained_on(photos, epochs=1), ("base",), (0, 1)), tmp_path / "out")
    run(runs[0].config, runs[0].folder)
    (photos / "dogs" / "000.png").write_bytes((photos / "cats" / "005.png").read_bytes())
    with pytest.raises(ValueError, match="the data have changed: then 8"):
        check(runs, tmp_path)


def test_a_comparison_by_a_model_that_was_edited_is_refused_and_an_old_record_tells_of_none(tmp_path, monkeypatch):
    config = Config(data="my_parts:classes", model="my_parts:net", method="base", epochs=1, threads=1)
    runs = plan(Comparison(config, ("base", "sam"), (0,)), tmp_path)
    path = run(runs[0].config, runs[0].folder).path
    monkeypatch.setattr("my_parts.net", lambda: nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3)))
    with pytest.raises(ValueError, match="the model has other tensors than it had"):
        check(runs, tmp_path)
    path.write_text(re.sub(r'"model": "\w{16}"', '"model": null', path.read_text()))
    check(runs, tmp_path)


def test_the_same_pictures_in_another_folder_are_the_same_data(tmp_path):
    facts = []
    for name in ("here", "there"):
        photos = class_folders(tmp_path / name, {"cats": 6, "dogs": 4})
        facts.append(run(trained_on(photos, epochs=0), tmp_path / "run"))
        (tmp_path / "run" / RECORD_NAME).unlink()
    assert facts[0].data == facts[1].data


class Noisy(torch.utils.data.TensorDataset):
    """Pairs whose inputs differ each time, as with augmentation."""

    def __getitem__(self, row):
        return torch.randn(3), super().__getitem__(row)[0]


def test_a_dataset_that_augments_has_a_steady_fingerprint_that_follows_its_targets():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    sets = [Noisy(torch.tensor(targets)) for targets in ([0, 1, 2], [0, 1, 2], [0, 1, 1])]
    one, again, other = (data_facts(Task(samples, sets[0])) for samples in sets)
    assert one == again and one["fingerprint"] != other["fingerprint"]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("of", [lambda x: x, lambda x: {"ids": x, "mask": x}])
def test_a_single_changed_number_of_a_tensor_changes_the_fingerprint(of):
    x, y = torch.zeros(50, 4), torch.zeros(50, dtype=torch.long)
    changed = x.clone()
    changed[31, 2] = 1e-30
    pairs = [(x, x), (changed, x), (x, changed)]
    assert len({data_facts(Task((of(a), y), (of(b), y)))["fingerprint"] for a, b in pairs}) == 3


# What takes effect ---------------------------------------------------------------------------------------------------


def test_a_record_tells_the_settings_that_took_effect_and_the_report_shows_them(tmp_path):
    record = run(dataclasses.replace(TINY, method="esam", epochs=1), tmp_path)
    assert record.config["settings"] == {}  # as it was asked
    told = record.run["effective"]
    assert told["method"] | {"rho": 0.05, "beta": 0.6, "gamma": 0.5, "ranking": "exact"} == told["method"]
    assert told["base"] | {"lr": 0.1, "momentum": 0.9, "nesterov": False} == told["base"]
    common, _ = common_and_differing([record])
    assert ("gamma", "0.5") in common.rows


# A loss that is no number --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lost")
    return run(WILD, folder, measures={"sharpness": lambda *_: 1.0}), folder


def test_a_loss_that_is_not_finite_ends_a_run_as_diverged_with_what_to_change(lost):
    record, _ = lost
    assert record.diverged and not record.finished
    assert record.last_epoch < WILD.epochs and record.epochs[-1]["train_loss"] is None
    assert record.end["error"] == f"the loss was not finite in epoch {record.last_epoch}; lower lr (1e+30)"
    assert "sharpness" not in record.end and record.end["test_accuracy"]["last"] is not None


def test_a_run_that_is_lost_in_its_very_last_steps_is_diverged_too(tmp_path):
    record = run(dataclasses.replace(WILD, batch_size=200, epochs=1), tmp_path)  # one step: its loss is at the start
    assert record.epochs[0]["train_loss"] is not None and record.diverged


def test_the_table_says_diverged(lost, tmp_path):
    good = run(dataclasses.replace(TINY, seed=1), tmp_path)
    good = dataclasses.replace(good, run=good.run | {"config": lost[0].config})
    for records, cell in (([lost[0]], "1 diverged"), ([lost[0], good], "; 1 diverged")):
        (methods,) = summarise(records).values()
        assert results_sheet(methods, columns=["Test acc., %"]).rows[0][1].endswith(cell)


def test_a_diverged_run_is_not_repeated_and_compare_ends_with_a_code_that_is_not_0(tmp_path, monkeypatch, capsys):
    words = "compare --data digits --model mlp --methods base --seeds 0 --train-size 200 --batch-size 50 --epochs 5"
    (planned,) = plan(Comparison(WILD, ("base",), (0,)), tmp_path)
    run(planned.config, planned.folder)
    monkeypatch.setattr("esam.runs.pool.WorkerProcess", None)  # starting anything would fail
    assert main([*words.split(), "--threads", "1", "--lr", "1e30", "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "1 of 1 runs diverged:\n  SGD, seed 0: the loss was not finite" in err
    assert "1 diverged" in out and (tmp_path / "report.html").exists()


def test_fit_keeps_the_last_good_checkpoint_when_the_loss_is_lost(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    good, bad = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1])), (torch.full((4, 2), math.nan), torch.zeros(4).long())

    class Batches:
        def __len__(self):
            return 1

        def epoch(self, number):
            return iter([good if number < 3 else bad])

    base = torch.optim.SGD(model.parameters(), lr=0.1)
    progress = fit(model, base, Batches(), epochs=9, checkpoint=Checkpoint(tmp_path))
    assert progress.diverged and progress.epoch == 3
    state = Checkpoint(tmp_path).load()
    assert state["progress"]["epoch"] == 2 and torch.isfinite(state["model"]["weight"]).all()
