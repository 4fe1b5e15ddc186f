"""A user's own data and model, named package.module:function."""

import dataclasses
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esam.optim import Base
from esam.train import Config, Task, run
from esam.train.batches import Batches, Normalise
from esam.train.build import build_optimizer, configured_task, prepared_model
from esam.train.datasets import load_data
from esam.train.loop import fit
from esam.train.task import make_model

MODULE = """
import torch
from torch import nn
from torch.utils.data import Dataset
from esam.train import Task

generator = torch.Generator().manual_seed(7)
x = torch.randn(60, 4, generator=generator)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

class Pairs(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, i):
        return x[i], int(y[i])

def classes():
    return Task((x[:40], y[:40]), (x[40:], y[40:]), classes=("none", "one", "both"))

def dataset():
    return Task(Pairs(), (x[40:], y[40:]))

def numbers():
    return Task((x[:40], x[:40, :1]), (x[40:], x[40:, :1]), loss=lambda out, t: (out - t).square().mean(1))

def pictures():
    images = x.view(-1, 1, 2, 2).repeat(1, 3, 4, 4)
    return Task((images[:40], y[:40]), (images[40:], y[40:]))

def net():
    return nn.Linear(4, 3)

def net_of(task):
    return nn.Linear(4, len(task.classes))

def line():
    return nn.Linear(4, 1)

def nothing():
    return None
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write a user's module into the working folder, and give its name."""
    (tmp_path / "my_things.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_things"
    sys.modules.pop("my_things", None)


def config(mine, data="classes", model="net", **more):
    return Config(data=f"{mine}:{data}", model=f"{mine}:{model}", method="sam", batch_size=8, epochs=3, lr=0.1, **more)


def test_a_run_of_my_own_has_a_whole_record(mine, tmp_path):
    record = run(config(mine), tmp_path / "run")
    assert record.finished
    assert [line["epoch"] for line in record.epochs] == [1, 2, 3]
    assert 0 < record.end["test_accuracy"]["last"] <= 1
    assert 0 < record.end["train_accuracy"] <= 1
    assert (record.end["forwards"], record.end["backwards"]) == (6, 6)


def test_tensors_and_a_dataset_of_the_same_rows_train_alike(mine, tmp_path):
    tensors = run(config(mine, "classes"), tmp_path / "tensors")
    dataset = run(config(mine, "dataset"), tmp_path / "dataset")
    assert tensors.end["train_loss"] == dataset.end["train_loss"]


def test_a_loss_of_my_own_trains_and_evaluates(mine, tmp_path):
    record = run(config(mine, "numbers", "line"), tmp_path / "run")
    assert record.epochs[-1]["test_loss"] < record.epochs[0]["test_loss"]
    assert record.end["test_accuracy"]["last"] is None


def test_a_run_of_my_own_resumes_bit_for_bit(mine, tmp_path):
    whole = run(config(mine), tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(metrics):
        if metrics["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        run(config(mine), tmp_path / "cut", watch=stop)
    assert run(config(mine), tmp_path / "cut").end["train_loss"] == whole.end["train_loss"]


def test_a_model_factory_with_a_parameter_is_given_the_task(mine):
    task = configured_task(config(mine))
    assert make_model(f"{mine}:net_of", task).out_features == 3


def test_the_seed_decides_a_factorys_weights(mine):
    task = configured_task(config(mine))
    first, same, other = (
        prepared_model(config(mine, seed=seed), task, torch.device("cpu")).weight for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_model_of_the_registry_takes_pictures_of_a_task(mine, tmp_path):
    own = Config(data=f"{mine}:pictures", model="mlp", method="base", batch_size=8, epochs=1)
    assert run(own, tmp_path / "run").finished
    with pytest.raises(ValueError, match="give a model of your own"):
        run(Config(data=f"{mine}:classes", model="mlp"), tmp_path / "other")


def test_the_order_of_an_epoch_depends_on_seed_and_epoch_alone(mine):
    samples = (torch.arange(10.0), torch.arange(10))
    batches = Batches(samples, 4, seed=3)
    again = torch.cat([y for _, y in Batches(samples, 4, seed=3).epoch(2)])
    list(batches.epoch(1))
    assert torch.equal(torch.cat([y for _, y in batches.epoch(2)]), again)
    assert torch.equal(batches.order(2), again)
    assert not torch.equal(batches.order(1), again)
    assert len(batches) == 3
    assert torch.equal(torch.cat([y for _, y in batches]), torch.arange(10))


@pytest.mark.parametrize("data", ["classes", "dataset"])
def test_a_part_a_held_out_fifth_and_wrong_labels_are_taken_of_a_task(mine, data):
    whole = load_data(f"{mine}:classes")
    task = load_data(f"{mine}:{data}", train_size=20, label_noise=0.25, validation=True)

    def rows(samples):
        return [
            (tuple(x.tolist()), int(y))
            for x, y in (samples if not isinstance(samples, tuple) else zip(*samples, strict=True))
        ]

    def listed(samples):
        return rows([samples[i] for i in range(len(samples))] if not isinstance(samples, tuple) else samples)

    true = dict(rows(whole.train))
    train, held_out = listed(task.train), listed(task.test)
    assert len(train) == 20
    assert len(held_out) == 8
    assert all(true[x] == y for x, y in held_out)
    assert not {x for x, _ in train} & {x for x, _ in held_out}
    assert sum(true[x] != y for x, y in train) == 5


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("no_such_module:f", "no module 'no_such_module'.*PYTHONPATH"),
        ("my_things:classe", "no function 'classe'.*Did you mean 'classes'"),
        ("my_things:", "no function ''"),
        ("my_things:nothing", "must be an esam.train.Task.*NoneType"),
    ],
)
def test_a_bad_data_factory_is_named_with_a_remedy(mine, data, words):
    with pytest.raises(ValueError, match=words):
        load_data(data)


def test_a_module_that_lacks_a_package_is_told_apart_from_a_missing_module(mine, tmp_path):
    (tmp_path / "needs_more.py").write_text("import not_installed_here\n")
    with pytest.raises(ValueError, match="needs not_installed_here, which is not installed"):
        load_data("needs_more:f")


def test_a_model_factory_must_return_a_module(mine):
    with pytest.raises(ValueError, match=r"must return a torch.nn.Module, got NoneType"):
        make_model(f"{mine}:nothing", None)


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


def test_parts_need_classes(mine):
    with pytest.raises(ValueError, match="one class a sample"):
        load_data(f"{mine}:numbers", train_size=10)


class Marked(Base):
    """The base, with what a method may ask of a trainer."""

    def evaluation_weights(self):
        from contextlib import contextmanager

        @contextmanager
        def ones():
            kept = [p.detach().clone() for p in self.model.parameters()]
            with torch.no_grad():
                for p in self.model.parameters():
                    p.fill_(1.0)
            yield
            with torch.no_grad():
                for p, old in zip(self.model.parameters(), kept, strict=True):
                    p.copy_(old)

        return ones()

    def trajectory_loss(self, outputs, samples):
        self.seen = [*getattr(self, "seen", []), samples.tolist()]
        return 0 * outputs.sum(1)


def test_evaluation_uses_the_weights_that_the_optimizer_offers():
    model = nn.Linear(2, 2)
    optimizer = Marked(torch.optim.SGD(model.parameters(), lr=0.1), model)
    x, y = torch.randn(8, 2), torch.zeros(8, dtype=torch.long)
    seen = []
    fit(model, optimizer, Batches((x, y), 4), [(x, y)], epochs=1, on_epoch=seen.append)
    assert seen[0]["test_loss"] == pytest.approx(float(F.cross_entropy(torch.ones(1, 2), y[:1])), rel=1e-5)
    assert not torch.equal(model.weight, torch.ones(2, 2))


def test_a_method_that_follows_training_is_told_its_length(mine, monkeypatch):
    from dataclasses import replace

    from esam.optim import METHODS

    told = []

    class Following(Base):
        def __init__(self, base, model, *, total_steps: int | None = None, seed: int | None = None) -> None:
            told.append(total_steps)
            super().__init__(base, model, seed=seed)

    monkeypatch.setitem(METHODS, "following", replace(METHODS["base"], build=Following))
    own = Config(data=f"{mine}:classes", model=f"{mine}:net", method="following", batch_size=8, epochs=3)
    assert run(own, "run").finished
    build_optimizer(Config(method="following", settings={"total_steps": 7}), nn.Linear(1, 1), total_steps=15)
    assert told == [15, 7]
    assert own.identity()["settings"]["total_steps"] is None


def test_images_and_tasks_have_the_same_batches_in_the_same_order():
    images = torch.randint(256, (20, 1, 2, 2), dtype=torch.uint8)
    as_images = Batches((images, torch.arange(20)), 6, transform=Normalise((0.0,), (1.0,)), seed=5)
    as_task = Batches((images / 255, torch.arange(20)), 6, seed=5)
    for (_, y), (_, same) in zip(as_images.epoch(4), as_task.epoch(4), strict=True):
        assert torch.equal(y, same)


def test_a_function_may_return_a_plain_pair_and_a_method_may_be_a_class_of_ones_own(tmp_path, monkeypatch):
    code = "import esam, torch\nfrom torch import nn\nX = torch.randn(20, 3)\nY = (X[:, 0] > 0).long()\n"
    code += "def pair(): return (X, Y), (X, Y)\ndef net(): return nn.Linear(3, 2)\nclass Mine(esam.SAM): 'SAM again.'\n"
    (tmp_path / "mine_for_task.py").write_text(code + "def wrong(): return X, Y\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = Config(data="mine_for_task:pair", model="mine_for_task:net", batch_size=10, epochs=2, threads=1)
    own, sam = (
        run(dataclasses.replace(config, method=method, settings={"rho": 0.1}), tmp_path / method.replace(":", "."))
        for method in ("mine_for_task:Mine", "sam")
    )
    assert own.name == "Mine" and own.epochs[-1]["train_loss"] == sam.epochs[-1]["train_loss"]
    assert own.run["id"] != sam.run["id"]
    with pytest.raises(ValueError, match=r"a pair \(train, test\)"):
        run(dataclasses.replace(config, data="mine_for_task:wrong"), tmp_path / "wrong")
    with pytest.raises(ValueError, match="must be a class that derives from esam.SharpnessAware"):
        run(dataclasses.replace(config, method="mine_for_task:net"), tmp_path / "net")
