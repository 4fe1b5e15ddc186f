"""Compiled, with blocks run again, with workers that read: does a run stay the run that it was?"""

import copy
import dataclasses
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from esam import METHODS
from esam.train import Config, run
from esam.train.batches import Batches
from esam.train.build import build_parts, compiled_or_recomputed, recompute_blocks
from esam.train.checkpoint import Checkpoint
from esam.train.models import build_model

TINY = Config(data="digits", model="resnet20", method="sam", train_size=64, batch_size=32, epochs=1, threads=1)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Block(nn.Module):
    """A layer whose statistics and dropout a second run could move."""

    def __init__(self):
        super().__init__()
        self.body, self.runs = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3)), 0

    def forward(self, x):
        self.runs += 1
        return x + self.body(x)


def stacked():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Sequential(Block(), Block(), Block()), nn.Linear(6, 3)).double()


def trained(model, name):
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = METHODS[name](base, model, seed=3)
    torch.manual_seed(7)
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(12, 6, dtype=torch.float64, generator=generator), torch.arange(12) % 3
        optimizer.step(lambda keep, x=x, y=y: F.cross_entropy(model(x[keep]), y[keep], reduction="none"), batch_size=12)
    return model


@pytest.mark.parametrize("name", ["base", "sam", "esam", "slicesam"])
def test_blocks_that_run_again_give_the_same_gradients_and_move_their_statistics_once(name):
    plain, again = stacked(), stacked()
    recompute_blocks(again)
    states = [trained(model, name).state_dict() for model in (plain, again)]
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=0, atol=1e-12)
    assert again[1][0].runs > plain[1][0].runs
    twin = copy.deepcopy(again)  # what is sharded keeps a whole twin of itself
    assert twin[1][0].forward.args[0] is twin[1][0]


def test_a_model_without_blocks_cannot_run_them_again_and_a_compiled_one_should_not():
    with pytest.raises(ValueError, match="no layers that repeat"):
        recompute_blocks(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    with pytest.raises(ValueError, match="leave one of them out"):
        Config(compile=True, checkpointing=True).check()


def test_every_named_model_of_depth_has_blocks_to_run_again():
    for name in ("resnet20", "resnet18", "vit-tiny"):
        recompute_blocks(build_model(name, classes=10, channels=3, size=32))


def test_what_a_run_is_run_with_does_not_change_which_run_it_is(tmp_path):
    ways = [{"workers": 1}, {"compile": True}, {"checkpointing": True}, {"strategy": "fsdp"}]
    assert {dataclasses.replace(TINY, **way).id() for way in ways} == {TINY.id()}
    run(dataclasses.replace(TINY, checkpointing=True), tmp_path / "again")
    assert run(TINY, tmp_path / "again").finished  # it is there already
    run(TINY, tmp_path / "plain")
    plain, again = (Checkpoint(tmp_path / name).load()["model"] for name in ("plain", "again"))
    for key, value in plain.items():
        torch.testing.assert_close(again[key], value, rtol=1e-4, atol=1e-5)  # float32, and recomputed


def test_a_compiled_model_keeps_its_names_and_trains_by_the_compiled_call(monkeypatch):
    calls = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, *args, **kwargs: calls.append(self))
    parts = build_parts(dataclasses.replace(TINY, compile=True))
    assert calls == [parts.model]
    calls.clear()
    model = stacked()
    compiled_or_recomputed(model, Config(compile=True, strategy="fsdp"))
    assert calls == list(model[1])


class Numbers(Dataset):
    """Tells, with each sample, which process read it."""

    def __len__(self):
        return 20

    def __getitem__(self, row):
        return torch.tensor([float(row), float(os.getpid())]), row


def test_a_dataset_of_ones_own_is_read_by_worker_processes_in_the_same_order():
    here, there = (Batches(Numbers(), 8, seed=3, workers=workers) for workers in (0, 2))
    ours, theirs = list(here.epoch(1)), list(there.epoch(1))
    assert [y.tolist() for _, y in ours] == [y.tolist() for _, y in theirs]
    assert {float(x[0, 1]) for x, _ in ours} == {float(os.getpid())}
    readers = {float(pid) for x, _ in theirs for pid in x[:, 1]}
    assert float(os.getpid()) not in readers and len(readers) == 2
