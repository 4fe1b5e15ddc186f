"""Does a run that is killed again and again, at moments nobody chose, end bit for bit as one that was left alone?"""

import json
import random
import time

import forked
import pytest
from conftest import same, timeless

from esam.runs import PlannedRun, worker
from esam.runs.plan import write_order
from esam.train import Checkpoint, Config
from esam.train.record import RECORD_NAME, read_record

KILLS = 8
CONFIG = Config(
    data="digits", model="mlp", method="esam", augment="shift", train_size=200, batch_size=50, epochs=40, threads=1
)


def start(folder):
    """Start, or go on with, the run of a folder in a process of its own."""
    write_order(PlannedRun(CONFIG, folder))
    return forked.start(worker.main, folder, ESAM_CACHE=str(folder.parent / "cache"))


def lines(folder):
    path = folder / RECORD_NAME
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_news(process, folder):
    """Wait until the run has written a line that was not there, or has ended."""
    fewest = lines(folder)
    while process.is_alive() and lines(folder) <= max(1, fewest):
        fewest = min(fewest, lines(folder))  # a resume may first drop a line
        process.join(0.001)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_bit_for_bit_as_one_left_alone(tmp_path):
    alone, folder = tmp_path / "alone", tmp_path / "killed"
    process = start(alone)
    wait_for_news(process, alone)
    began = time.monotonic()
    process.join()
    assert process.exitcode == 0
    epoch = (time.monotonic() - began) / CONFIG.epochs  # with the saving

    moments, reached = random.Random(0), []
    for kill in range(KILLS):
        process = start(folder)
        if kill % 4 != 1:  # else while it loads the data or the checkpoint, or cuts the record
            wait_for_news(process, folder)
        process.join(epoch * moments.uniform(0, 3))  # while it trains, evaluates, or writes record and checkpoint
        if not process.is_alive():  # a busy machine let it come to its end before it was our turn
            assert process.exitcode == 0
            break
        process.kill()
        process.join()
        reached.append(read_record(folder / RECORD_NAME).last_epoch)
    process = start(folder)
    process.join()
    assert process.exitcode == 0

    assert len(set(reached)) > KILLS / 3, reached  # it got on between the kills
    record, twin = read_record(folder / RECORD_NAME), read_record(alone / RECORD_NAME)
    assert [line["epoch"] for line in record.epochs] == list(range(1, CONFIG.epochs + 1))
    assert timeless(record.epochs) == timeless(twin.epochs)
    assert record.finished and timeless(record.end) == timeless(twin.end)

    state, expected = Checkpoint(folder).load(), Checkpoint(alone).load()
    assert same(state["model"], expected["model"]) and same(state["optimizer"], expected["optimizer"])
    assert [p.name for p in folder.glob(".checkpoint.pt*")] == []  # nothing half-written is left lying about
    assert json.loads((folder / "config.json").read_text()) == json.loads((alone / "config.json").read_text())
