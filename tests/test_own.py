"""Is a comparison from Python, of anybody's model and data, as fair and as complete as one from the command line?"""

import math
import random
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import snippets
import torch
import torch.nn.functional as F
from my_parts import squares
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import esam
from esam.report.settings import common_and_differing
from esam.train.batches import SeededLoader
from esam.train.record import read_records

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(60, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
TRAIN, TEST = (X[:40], Y[:40]), (X[40:], Y[40:])


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def compared(out, *, build=net, train=TRAIN, test=TEST, **more):
    defaults = {"methods": ["base", "sam"], "seeds": [0], "epochs": 2, "tell": None, "threads": 1}
    if not isinstance(train, DataLoader):
        defaults["batch_size"] = 8
    return esam.compare(build, train, test, out=out, **(defaults | more))


def losses(result):
    return {record.method: [line["train_loss"] for line in record.epochs] for record in result.records}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("own")
    return compared(out, classes=("left", "right"), name="my points", seeds=[0, 1]), out


def test_a_comparison_from_python_leaves_records_a_report_and_weights(result):
    found, out = result
    assert [(r.method, r.seed) for r in found.records] == [("base", 0), ("sam", 0), ("base", 1), ("sam", 1)]
    assert sorted(r.run["id"] for r in read_records(out)) == sorted(r.run["id"] for r in found.records)
    assert found.report == out / "report.html" and "my points" in found.report.read_text()
    assert "Test acc., %" in str(found)
    record = found.records[1]
    assert record.data["classes"] == ["left", "right"] and record.end["sharpness"] is not None
    loaded = esam.load_run(record.path.parent, build_model=net)
    right = loaded(X[40:]).argmax(1).eq(Y[40:]).float().mean()
    assert loaded.classes == ("left", "right") and right == pytest.approx(record.end["test_accuracy"]["last"])


def test_the_result_gives_means_and_deviations_as_rows(result):
    found, _ = result
    for row, method in zip(found.rows, ("base", "sam"), strict=True):
        values = [r.end["test_accuracy"]["last"] for r in found.records if r.method == method]
        assert (row["method"], row["seeds"]) == (method, [0, 1])
        assert (row["test_accuracy"], row["test_accuracy_std"]) == (statistics.mean(values), statistics.stdev(values))


def test_a_changed_model_is_refused(result):
    def wider():
        return nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 2))

    wider.__module__, wider.__qualname__ = net.__module__, net.__qualname__
    with pytest.raises(ValueError, match="the model has other tensors than it had"):
        compared(result[1], build=wider, classes=("left", "right"), name="my points", seeds=[0, 1])


# Data ----------------------------------------------------------------------------------------------------------------


class Augmented(Dataset):
    """Draws from three random streams at once, as transforms do."""

    def __len__(self):
        return 12

    def __getitem__(self, row):
        return X[row] + torch.rand(()) + random.random() + np.random.rand(), Y[row]


class ByName(nn.Module):
    """Takes tensors by name and answers as transformers do: an object that holds logits beside other things."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, points, shift=None):
        return SimpleNamespace(logits=self.net(points + shift), loss=None)


class Whole(ByName):
    """Takes the dict itself."""

    def forward(self, batch):
        return self.net(batch["points"] + batch["shift"])


def named(x, y):
    """Samples as one dict each, as a tokenizer's data set gives them."""
    return [{"points": row - 1, "shift": torch.ones(4), "labels": label} for row, label in zip(x, y, strict=True)]


def test_every_kind_of_data_trains_and_the_same_data_train_alike(tmp_path):
    pairs, weighted = TensorDataset(*TRAIN), WeightedRandomSampler(torch.rand(40), num_samples=24)
    dicts = [({"points": x - 1, "shift": torch.ones_like(x)}, y) for x, y in (TRAIN, TEST)]
    kinds = {
        "tensors": (net, TRAIN, TEST),
        "dataset": (net, pairs, TEST),
        "loader": (net, DataLoader(pairs, batch_size=8, shuffle=True), TEST),
        "weighted loader": (net, DataLoader(pairs, batch_size=8, sampler=weighted), TEST),
        "dicts": (ByName, *dicts),
        "rows": (ByName, named(*TRAIN), named(*TEST)),
        "whole dicts": (Whole, *dicts),
        "loader of rows": (ByName, DataLoader(named(*TRAIN), batch_size=8, shuffle=True), named(*TEST)),
    }
    found = {}
    for kind, (build, train, test) in kinds.items():
        result = compared(tmp_path / kind, build=build, train=train, test=test, methods=["base", "esam"])
        found[kind] = [value for line in losses(result).values() for value in line]
        assert all(record.finished and record.end["sharpness"] is not None for record in result.records)
        assert len({record.data["fingerprint"] for record in result.records}) == 1
    assert found["dataset"] == found["tensors"]
    assert found["dicts"] == pytest.approx(found["tensors"], rel=1e-4)  # x - 1 + 1 is rounded
    assert found["rows"] == pytest.approx(found["dicts"], rel=1e-6) == found["whole dicts"]
    loaded = esam.load_run(result.records[0].path.parent, build_model=ByName)
    assert loaded({"points": X[:3] - 1, "shift": torch.ones(3, 4)}).shape == (3, 2)
    bare = [{"points": row} for row in X]
    with pytest.raises(ValueError, match="a dict with labels or label, got a dict with points"):
        compared(tmp_path / "bare", build=ByName, train=bare, test=bare)


def test_a_loader_of_batches_has_their_size_and_the_length_that_suits_it(tmp_path):
    pairs = TensorDataset(X[:40].repeat(10, 1), Y[:40].repeat(10))
    for name, batches in (("sampler", BatchSampler(range(400), 8, False)), ("list", [[0, 1, 2, 3] * 2] * 50)):
        train = DataLoader(pairs, batch_sampler=batches)
        (record,) = compared(tmp_path / name, train=train, methods=["base"], epochs=None).records
        assert (record.config["batch_size"], record.config["epochs"]) == (8, 30)


def test_a_loaders_epochs_depend_on_seed_and_number_alone_and_leave_the_streams_outside_alone():
    loader = DataLoader(Augmented(), batch_size=5, shuffle=True)

    def epoch(seed, number):
        torch.rand(7), random.random(), np.random.rand()  # whatever a method draws meanwhile
        return torch.cat([x for x, _ in SeededLoader(loader, seed=seed).epoch(number)])

    first = epoch(0, 1)
    assert torch.equal(first, epoch(0, 1))
    assert not torch.equal(first, epoch(0, 2)) and not torch.equal(first, epoch(1, 1))
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    alone = torch.rand(3).tolist(), random.random(), np.random.rand()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    batches = SeededLoader(loader, seed=0).epoch(1)
    next(batches), next(batches)
    assert (torch.rand(3).tolist(), random.random(), np.random.rand()) == alone


# Losses, metrics, optimizers -----------------------------------------------------------------------------------------


def test_a_regression_is_compared_by_its_loss_and_a_metric_of_its_own(tmp_path):
    found = compared(
        tmp_path,
        build=lambda: nn.Linear(4, 1),
        train=(X[:40], X[:40, :1]),
        test=(X[40:], X[40:, :1]),
        loss=lambda outputs, targets: (outputs - targets).square().mean(1),
        metric=lambda outputs, targets: (outputs - targets).abs().mean(1),
        lr=0.05,
        epochs=8,
    )
    record = found.records[0]
    assert record.end["test_accuracy"]["last"] is None
    model = esam.load_run(record.path.parent, build_model=lambda: nn.Linear(4, 1)).model
    with torch.no_grad():
        error = (model(X[40:]) - X[40:, :1]).abs().mean().item()
    assert record.end["test_metric"] == pytest.approx(error, rel=1e-4)  # float32 sums in another order
    assert "Test loss" in str(found) and "Test metric" in str(found) and "Train acc" not in str(found)
    assert "a test loss of" in str(found).splitlines()[0]


def test_a_segmentation_with_one_loss_per_picture_trains(tmp_path):
    pictures = torch.rand(12, 1, 4, 4, generator=GENERATOR)
    marks, build = (pictures[:, 0] > 0.5).long(), lambda: nn.Conv2d(1, 2, 1)
    loss = lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none").mean((1, 2))  # noqa: E731
    samples = [(pictures[part], marks[part]) for part in (slice(0, 8), slice(8, 12))]
    found = compared(tmp_path, build=build, train=samples[0], test=samples[1], loss=loss)
    assert all(0 < record.end["test_accuracy"]["last"] <= 1 for record in found.records)  # of pixels


def test_any_optimizer_is_the_base_and_the_record_says_which(tmp_path):
    def radam(parameters):
        return torch.optim.RAdam(parameters, lr=0.01, weight_decay=0.1)

    found = compared(tmp_path, optimizer=radam)
    assert [record.name for record in found.records] == ["RAdam", "SAM"]
    assert found.records[0].config["optimizer"] == "RAdam(lr=0.01, weight_decay=0.1)"
    assert found.records[1].run["effective"]["base"]["weight_decay"] == 0.1
    shown = dict(common_and_differing(found.records)[0].rows)
    assert (shown["lr"], shown["weight decay"]) == ("0.01", "0.1") and "momentum" not in shown
    other = compared(tmp_path, optimizer=lambda parameters: torch.optim.RAdam(parameters, lr=0.02))
    assert other.records[0].path != found.records[0].path  # another optimizer is another run


def test_the_page_on_your_own_model_is_code(tmp_path, monkeypatch, capsys):
    samples = torch.randn(40, 64), torch.arange(40) % 10
    faster = {"epochs=20": "epochs=1, threads=1", "seeds=[0, 1, 2]": "seeds=[0]"}
    monkeypatch.chdir(tmp_path)
    snippets.run("command_line.md", {"train": samples, "test": samples, "__name__": "mine"}, "From Python", faster)
    told = capsys.readouterr().out
    assert "cannot be told" in told and told.strip().endswith("report.html") and (tmp_path / "runs" / "mine").is_dir()


# Refused -------------------------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": torch.optim.RAdam, "lr": 0.1}, "lr is the optimizer's own"),
        ({"train": DataLoader(TensorDataset(*TRAIN)), "batch_size": 4}, "batch_size is the DataLoader's own"),
        ({"methods": ["esma"]}, "Did you mean 'esam'"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'. Did you mean 'adamw'"),
        ({"optimizer": lambda parameters: 3}, "must return a torch optimizer, got int"),
        ({"build": lambda: 3}, "torch.nn.Module, got int"),
        ({"build": net()}, "a function that builds a model"),
        ({"train": DataLoader(Stream())}, "a Dataset with a length, got Stream"),
        ({"lr": float("nan")}, "lr must be"),
        ({"train": (X.masked_fill(X.eq(X[7, 3]), math.nan), Y)}, "in sample 7, column 3"),
        ({"build": lambda: nn.Linear(4, 1)}, "give it 2 outputs"),
        ({"settings": {"sam": {"rhoo": 1}}}, "Did you mean 'rho'"),
        ({"build": lambda: nn.Linear(4, 1), "train": (X, X[:, 0]), "loss": squares}, r"are \(2, 1\), targets \(2,\);"),
        ({"metric": lambda outputs, targets: outputs.mean()}, "the metric must give one number per sample"),
        ({"train": DataLoader(TensorDataset(X, Y, Y), batch_size=4)}, "must give pairs"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_a_reason(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        compared(tmp_path, **change)
