"""Does a run that is killed twenty times, at moments nobody chose, end bit for bit as one that was left alone?"""

import itertools
import json
import math
import os
import random
import subprocess
import sys
import time

import pytest
import torch

from esam.compare import PlannedRun
from esam.train import Checkpoint, Config
from esam.train.record import RECORD_NAME, read_record

KILLS = 20
CONFIG = Config(data="digits", model="mlp", method="esam", augment="shift", epochs=150, threads=1)
TIMES = {"seconds", "train_seconds", "cpu_seconds", "images_per_second", "peak_memory"}


@pytest.fixture
def start(tmp_path):
    """Start the worker of a folder; what is left of it is ended after the test."""
    started = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ESAM_CACHE": str(tmp_path / "cache")}

    def worker(folder):
        PlannedRun(CONFIG, folder).prepare()
        command = [sys.executable, "-m", "esam.compare.worker", str(folder)]
        with (folder / "log.txt").open("ab") as log:
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return started[-1]

    yield worker
    for process in started:
        process.kill()
        process.wait()


def lines(folder):
    path = folder / RECORD_NAME
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_news(process, folder, at_most=math.inf):
    """Wait until the run has written a line that was not there, or so many seconds; give how long that took."""
    began, before, lowest = time.monotonic(), lines(folder), None
    while process.poll() is None and time.monotonic() - began < at_most:
        now = lines(folder)
        lowest = now if lowest is None else min(lowest, now)  # a resume may first drop a line
        if now > max(1, min(before, lowest)):
            break
        time.sleep(0.005)
    return time.monotonic() - began


def timeless(line):
    return {key: value for key, value in line.items() if key not in TIMES}


def test_a_run_that_is_killed_twenty_times_ends_bit_for_bit_as_one_left_alone(tmp_path, start):
    alone, folder = tmp_path / "alone", tmp_path / "killed"
    process = start(alone)
    start_up = wait_for_news(process, alone)
    assert process.wait() == 0, (alone / "log.txt").read_text()
    epoch = read_record(alone / RECORD_NAME).end["seconds"] / CONFIG.epochs  # saving comes on top

    moments = random.Random(0)
    reached = []
    for kill in range(KILLS):
        process = start(folder)
        if kill % 5 == 0:  # while it imports, loads the data or the checkpoint, or cuts the record
            wait_for_news(process, folder, at_most=start_up * moments.uniform(0.2, 1.0))
        else:  # while it trains, evaluates, or writes record and checkpoint
            wait_for_news(process, folder)
            time.sleep(epoch * moments.uniform(0, 6))
        assert process.poll() is None, f"ended before kill {kill + 1}: {(folder / 'log.txt').read_text()}"
        process.kill()
        process.wait()
        reached.append(read_record(folder / RECORD_NAME).last_epoch if lines(folder) else 0)
    assert start(folder).wait() == 0, (folder / "log.txt").read_text()

    assert sum(later > earlier for earlier, later in itertools.pairwise(reached)) > KILLS / 2  # it got on
    record, twin = read_record(folder / RECORD_NAME), read_record(alone / RECORD_NAME)
    assert [line["epoch"] for line in record.epochs] == list(range(1, CONFIG.epochs + 1))
    assert [timeless(line) for line in record.epochs] == [timeless(line) for line in twin.epochs]
    assert record.finished and timeless(record.end) == timeless(twin.end)

    state, expected = Checkpoint(folder).load(), Checkpoint(alone).load()
    assert state["model"].keys() == expected["model"].keys()
    assert all(torch.equal(state["model"][name], expected["model"][name]) for name in expected["model"])
    buffers, others = state["optimizer"]["state"], expected["optimizer"]["state"]
    assert all(torch.equal(buffers[n]["momentum_buffer"], others[n]["momentum_buffer"]) for n in others)
    own, other = state["optimizer"]["sharpness_aware"], expected["optimizer"]["sharpness_aware"]
    assert own["memory"] == other["memory"] and torch.equal(own["generator"], other["generator"])
    assert [p.name for p in folder.glob(".checkpoint.pt*")] == []  # nothing half-written is left lying about
    assert json.loads((folder / "config.json").read_text()) == json.loads((alone / "config.json").read_text())
