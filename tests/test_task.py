"""A user's own data, model and method, named package.module:function."""

import dataclasses

import my_parts
import pytest
import torch

from esam.train import Config, Task, run
from esam.train.build import build_parts, prepared_model
from esam.train.datasets import load_data
from esam.train.task import make_model


def config(data="classes", model="net", **more):
    names = {"data": f"my_parts:{data}", "model": f"my_parts:{model}", "method": "sam"}
    return Config(**{**names, "batch_size": 8, "epochs": 3, "threads": 1, **more})


def test_a_run_of_my_own_has_a_whole_record_and_tensors_and_rows_train_alike(tmp_path):
    record = run(config(), tmp_path / "tensors")
    assert record.finished and [line["epoch"] for line in record.epochs] == [1, 2, 3]
    assert 0 < record.end["test_accuracy"]["last"] <= 1 and 0 < record.end["train_accuracy"] <= 1
    assert (record.end["forwards"], record.end["backwards"]) == (6, 6)
    assert run(config("dataset"), tmp_path / "dataset").end["train_loss"] == record.end["train_loss"]


def test_a_plain_pair_is_a_task_and_a_class_of_ones_own_is_a_method(tmp_path):
    pair = config("pair", settings={"rho": 0.1})
    mine, sam = (
        run(dataclasses.replace(pair, method=method), tmp_path / str(number))
        for number, method in enumerate(("my_parts:Mine", "sam"))
    )
    assert mine.name == "Mine" and mine.epochs[-1]["train_loss"] == sam.epochs[-1]["train_loss"]
    assert mine.run["id"] != sam.run["id"]
    with pytest.raises(ValueError, match="not a subclass of esam.SharpnessAware"):
        run(config(method="my_parts:net"), tmp_path / "net")


def test_a_model_factory_with_a_parameter_is_given_the_task_and_the_seed_decides_its_weights():
    task = load_data(config())
    assert make_model("my_parts:net_of", task).out_features == 3
    first, same, other = (prepared_model(config(seed=seed), task, torch.device("cpu")).weight for seed in (0, 0, 1))
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_a_model_of_the_registry_takes_pictures_of_a_task(tmp_path):
    pictures, table = (dataclasses.replace(config(data, epochs=1), model="mlp") for data in ("pictures", "classes"))
    assert run(pictures, tmp_path / "run").finished
    with pytest.raises(ValueError, match="give a model of your own"):
        run(table, tmp_path / "other")


@pytest.mark.parametrize("data", ["classes", "dataset"])
def test_a_part_a_held_out_fifth_and_wrong_labels_are_taken_of_a_task(data):
    noise = 0.25 if data == "classes" else 0.0
    task = load_data(config(data, train_size=20, label_noise=noise, validation=True))

    def listed(samples):
        rows = zip(*samples, strict=True) if isinstance(samples, tuple) else (samples[i] for i in range(len(samples)))
        return [(tuple(x.tolist()), int(y)) for x, y in rows]

    true = dict(listed(my_parts.TRAIN))
    train, held_out = listed(task.train), listed(task.test)
    assert (len(train), len(held_out)) == (20, 8)
    assert all(true[x] == y for x, y in held_out)
    assert not {x for x, _ in train} & {x for x, _ in held_out}
    assert sum(true[x] != y for x, y in train) == 20 * noise
    if not noise:
        with pytest.raises(ValueError, match="in a Dataset of your own, change them there"):
            load_data(config(data, label_noise=0.25))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("no_such_module:f", "PYTHONPATH"),
        ("my_parts:classe", "Did you mean 'classes'"),
        ("my_parts:", "no function ''"),
        ("my_parts:TEST", "no function 'TEST'"),
        ("my_parts:tensors", r"a pair \(train, test\), got tuple"),
    ],
)
def test_a_bad_data_factory_is_named_with_a_remedy(data, words):
    with pytest.raises(ValueError, match=words):
        load_data(Config(data=data))


def test_a_module_that_lacks_a_package_is_told_apart_from_a_missing_module(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="needs not_installed_here"):
        load_data(Config(data="needs_more:f"))


def test_what_a_factory_makes_must_be_of_use():
    with pytest.raises(ValueError, match="torch.nn.Module, got tuple"):
        make_model("my_parts:pair")
    with pytest.raises(ValueError, match="one class a sample"):
        load_data(config("numbers", train_size=10))


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ((torch.ones(3), torch.ones(2)), "3 inputs and 2 targets"),
        ((torch.ones(3),), "pair of tensors"),
        ((torch.ones(0), torch.ones(0)), "a sample at least"),
        (iter([1]), "Dataset with a length"),
    ],
)
def test_a_task_refuses_what_is_no_data(train, words):
    with pytest.raises(ValueError, match=words):
        Task(train, (torch.ones(1), torch.ones(1)))


def test_a_method_that_follows_training_is_told_its_length():
    following = config(method="ae-sam")  # 3 epochs of 5 batches
    assert build_parts(following).optimizer.total_steps == 15
    assert build_parts(dataclasses.replace(following, settings={"total_steps": 7})).optimizer.total_steps == 7
    assert following.identity()["settings"]["total_steps"] is None
