"""Does a configuration become one record, whatever happens to it on the way, and is a wrong one refused by name?"""

import dataclasses
import json
import math
import os
from types import SimpleNamespace

import forked
import pytest
import torch
import torch.nn.functional as F
from conftest import Interrupted, contents, same, timeless

from esam.train import Checkpoint, Config, evaluate, loop, run, runner
from esam.train.build import batches_of, build_parts, prepared_model
from esam.train.datasets import load_data
from esam.train.record import RECORD_NAME, read_record

TINY = Config(data="digits", model="mlp", method="base", train_size=200, batch_size=50, epochs=4, threads=1)

pytestmark = pytest.mark.usefixtures("own_cache")


def lines(folder):
    return timeless([json.loads(line) for line in (folder / RECORD_NAME).read_text().splitlines()])


def weights(folder):
    return Checkpoint(folder).load()["model"]


def stopping_at(epoch):
    def watch(metrics):
        if metrics["epoch"] == epoch:
            raise Interrupted

    return watch


# Interrupted ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["esam", "looksam"])
def test_a_run_interrupted_at_every_epoch_leaves_the_record_of_one_left_alone(tmp_path, method):
    config = dataclasses.replace(TINY, method=method, augment="shift", evaluate_every=3)
    measures = {"weight": lambda model, data, device: model[1].weight.sum().item()}
    run(config, tmp_path / "alone", measures=measures)
    for epoch in (1, 2, 2, 3, 4):  # the line of that epoch is written, its checkpoint is not
        with pytest.raises(Interrupted):
            run(config, tmp_path / "run", measures=measures, watch=stopping_at(epoch))
    run(config, tmp_path / "run", measures=measures)
    assert lines(tmp_path / "run") == lines(tmp_path / "alone")
    assert same(weights(tmp_path / "run"), weights(tmp_path / "alone"))


def failing(model, data, device):
    raise Interrupted


def test_a_run_interrupted_while_it_is_measured_trains_no_epoch_twice(tmp_path):
    with pytest.raises(Interrupted):
        run(TINY, tmp_path, measures={"sharpness": failing})
    before = lines(tmp_path)
    assert read_record(tmp_path / RECORD_NAME).last_epoch == 4 and not read_record(tmp_path / RECORD_NAME).finished
    seen = []
    record = run(TINY, tmp_path, measures={"sharpness": lambda *_: 0.25}, watch=seen.append)
    assert seen == [] and lines(tmp_path)[:-1] == before
    assert record.finished and record.end["sharpness"] == 0.25
    assert record.end["test_accuracy"]["last"] == record.epochs[-1]["test_accuracy"]


def test_a_budget_is_spent_once_however_often_the_run_is_interrupted(tmp_path, monkeypatch):
    now = iter(range(10**6))  # a clock that moves on by a second whenever somebody looks at it
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(now), process_time=lambda: 0.0))
    config = dataclasses.replace(TINY, budget=30, epochs=1)  # the budget counts, not the epochs
    with pytest.raises(Interrupted):
        run(config, tmp_path, watch=stopping_at(2))
    record = run(config, tmp_path)
    assert record.finished and record.last_epoch > 2
    assert record.epochs[-1]["seconds"] >= 30 > record.epochs[-2]["seconds"]
    assert record.end["seconds"] == record.epochs[-1]["seconds"]
    assert record.end["seconds"] == sum(line["train_seconds"] for line in record.epochs)
    assert record.epochs[-1]["lr"] < record.epochs[0]["lr"]  # the cosine follows the budget


# What the record says ------------------------------------------------------------------------------------------------


def test_the_last_line_holds_what_the_trained_model_gives(tmp_path):
    config = dataclasses.replace(TINY, method="esam", label_noise=0.2, settings={"beta": 0.6}, notes=("one", "two"))
    record = run(config, tmp_path)
    data = load_data(Config(train_size=200, label_noise=0.2))
    model = prepared_model(config, data, torch.device("cpu"))
    model.load_state_dict(weights(tmp_path))
    _, test, ordered = batches_of(config, data, torch.device("cpu"), torch.contiguous_format)
    ((x, y),) = ordered  # one batch, so the kernels that the run used
    assert torch.equal(y, data.train[1])
    assert record.end["train_accuracy"] == (model(x).argmax(1) == y).double().mean().item()
    # The loss in float64, on which processors agree; float32 errs by 2**-24 of it in each of some hundred roundings.
    loss = F.cross_entropy(model.double()(x.double()), y).item()
    assert record.end["train_loss"] == pytest.approx(loss, rel=1e-5)
    accuracies = [line["test_accuracy"] for line in record.epochs]
    assert record.end["test_accuracy"] == {"last": accuracies[-1], "best": max(accuracies)}
    assert record.epochs[-1]["test_accuracy"] == evaluate(model.float(), test)["test_accuracy"]
    counts, accuracies = record.data["of_each_class"]["test"], record.end["class_accuracy"]
    right = sum(round(count * accuracy) for count, accuracy in zip(counts, accuracies, strict=True))
    assert right / sum(counts) == record.end["test_accuracy"]["last"]
    assert (record.end["forwards"], record.end["backwards"]) == (10.0, 6.0)
    assert record.name == "ESAM" and Config.from_json(record.config) == config
    assert (record.run["environment"]["device"], record.run["environment"]["threads"]) == ("cpu", 1)


# Whose folder is it --------------------------------------------------------------------------------------------------


def test_a_finished_run_is_returned_and_no_file_is_touched(tmp_path):
    record = run(TINY, tmp_path)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    again = run(TINY, tmp_path, watch=stopping_at(1))
    remarked = run(dataclasses.replace(TINY, notes=("a remark",), threads=None), tmp_path)  # these make no other run
    assert again == remarked == record
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "told", "finished"),
    [
        ({"seed": 1}, "seed is 0 there and 1 here", False),
        ({"method": "sam"}, "method is 'base' there and 'sam' here", True),
        ({"epochs": 5}, "epochs is 4 there and 5 here", True),
        ({"epochs": 5, "lr": 0.2}, "epochs is 4 there and 5 here, lr is 0.1 there and 0.2 here", False),
    ],
)
def test_another_configuration_in_the_same_folder_is_refused_by_what_differs(tmp_path, change, told, finished):
    if finished:
        run(TINY, tmp_path)
    else:
        with pytest.raises(Interrupted):
            run(TINY, tmp_path, watch=stopping_at(3))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"holds another run: {told}.*; choose another folder"):
        run(dataclasses.replace(TINY, **change), tmp_path)
    assert contents(tmp_path) == before


def test_a_run_that_failed_before_its_first_epoch_is_not_in_the_way_of_the_next(tmp_path):
    with pytest.raises(Interrupted):
        run(dataclasses.replace(TINY, epochs=0, seed=1), tmp_path, measures={"sharpness": failing})
    assert read_record(tmp_path / RECORD_NAME).seed == 1
    record = run(TINY, tmp_path)
    assert record.finished and Config.from_json(record.config) == TINY


def run_and_wait_inside(folder, inside, go_on):
    """Run, but stop before the first epoch until told to go on."""
    fit = runner.fit

    def waiting_fit(*arguments, **settings):
        inside.set()
        assert go_on.wait(600)
        return fit(*arguments, **settings)

    runner.fit = waiting_fit
    run(TINY, folder)


@pytest.mark.slow
def test_a_second_process_is_kept_out_of_a_folder_and_the_first_is_not_disturbed(tmp_path):
    inside, go_on = forked.CONTEXT.Event(), forked.CONTEXT.Event()
    first = forked.start(run_and_wait_inside, tmp_path, inside, go_on, ESAM_CACHE=os.environ["ESAM_CACHE"])
    assert inside.wait(600)
    for config in (TINY, dataclasses.replace(TINY, seed=1)):
        with pytest.raises(ValueError, match=f"another process is writing to {tmp_path}; wait until"):
            run(config, tmp_path)
    go_on.set()
    first.join()
    assert first.exitcode == 0
    record = run(TINY, tmp_path, watch=stopping_at(1))
    assert record.finished and len(record.epochs) == TINY.epochs and Config.from_json(record.config) == TINY


def test_a_checkpoint_without_its_record_is_refused(tmp_path):
    run(TINY, tmp_path)
    os.remove(tmp_path / RECORD_NAME)
    with pytest.raises(ValueError, match="holds a checkpoint but no record; delete the folder"):
        run(TINY, tmp_path)


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"augment": "shfit"}, "unknown augment 'shfit'. Did you mean 'shift'"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'. Did you mean 'adamw'"),
        ({"device": "gpu"}, "device must be auto, cpu or one that torch finds here, got 'gpu'"),
        ({"train_size": 10**6}, r"train_size must be in 1..1438"),
        ({"label_column": "label"}, "digits has no columns to choose from"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_nearest_name_or_the_range(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        run(dataclasses.replace(TINY, **change), tmp_path)


def test_the_learning_rate_rises_over_the_warm_up_and_then_falls_along_the_cosine(tmp_path):
    config = Config(model="mlp", method="base", epochs=8, warmup=4, batch_size=100, train_size=200, lr=0.1, threads=1)
    rates = [line["lr"] for line in run(config, tmp_path / "warm").epochs]
    half_steps = [0.1 * (n - 0.5) / 4 for n in (1, 2, 3, 4)]  # two batches an epoch; the last is at half an epoch
    assert rates[:4] == pytest.approx(half_steps)
    assert rates[4:] == pytest.approx([0.1 * (1 + math.cos(math.pi * (n - 0.5) / 4)) / 2 for n in (1, 2, 3, 4)])
    with pytest.raises(ValueError, match="warmup must be less than the 8 epochs of training, got 8"):
        run(dataclasses.replace(config, warmup=8), tmp_path / "never")
    assert Config().id() == dataclasses.replace(Config(), warmup=0.0).id() != dataclasses.replace(config).id()


def test_a_model_is_compiled_where_it_is_asked_for(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, *args, **kwargs: compiled.append(self))
    model = build_parts(dataclasses.replace(TINY, compile=True)).model
    assert compiled == [model]


def test_remarks_and_how_a_run_is_computed_do_not_make_another_run():
    ways = [{"notes": ("a",)}, {"workers": 1}, {"compile": True}, {"device": "cpu"}, {"threads": 2}]
    assert {dataclasses.replace(TINY, **way).id() for way in ways} == {TINY.id()}
    assert Config(method="sam", settings={"rho": 0.05}).id() == Config(method="sam").id()  # its default, said
    assert Config(method="sam", settings={"rho": 0.1}).id() != Config(method="sam").id()
