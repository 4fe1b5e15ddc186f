"""The bench of one step: what it counts and what it says; never how long it took."""

import json

import pytest
import torch

from esam.bench.memory import peak_memory
from esam.bench.steps import Bench, bench_steps, contender, steps_sheet
from esam.cli import main
from esam.optim import METHODS

TINY = Bench(model="mlp", batch_size=8, size=8, rounds=3)


@pytest.fixture(autouse=True)
def one_thread():
    yield
    torch.set_num_threads(1)


def test_every_contender_steps_is_counted_by_hooks_in_batches_and_compared_with_the_base():
    names = [name for name in METHODS if name != "sam-on"]  # this model has no norm layers
    result = bench_steps(TINY, {name: contender(name) for name in names})
    rows = result["contenders"]
    passes = {"base": (1, 1), "base-part": (0.5, 0.5), "sam": (2, 2), "esam": (2.5, 1.5)}
    passes |= {"esam-random": (1.5, 1.5), "esam-swp": (2, 2)}
    assert {name: (rows[name]["forwards"], rows[name]["backwards"]) for name in passes} == passes
    for row in rows.values():
        assert row["seconds"]["n"] == row["time / base"]["n"] == 3
        assert row["seconds"]["interval"][0] <= row["seconds"]["median"] <= row["seconds"]["interval"][1]
    assert rows["base"]["time / base"]["median"] == 1
    assert [row[0] for row in steps_sheet(result).rows] == names


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own():
    assert peak_memory(Bench(model="mlp", batch_size=512, size=32, rounds=1), contender("sam")) > 1_000_000


def test_the_command_prints_a_table_and_writes_a_record(tmp_path, capsys):
    out = tmp_path / "bench.json"
    command = "bench --model mlp --batch-size 8 --size 8 --rounds 2 --methods base sam --no-memory --set sam.rho=0.1"
    assert main([*command.split(), "--out", str(out)]) == 0
    assert "time / base" in capsys.readouterr().out
    assert list(json.loads(out.read_text())["contenders"]) == ["base", "sam"]
