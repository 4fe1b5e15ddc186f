"""A rank is killed: does the job end in time and say why, and does a restart end as if nothing had happened?"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import faulty_task
import pytest
import torch
from two_ranks import needs_gloo

from esam.train import Checkpoint, Config, run
from esam.train.record import read_record

pytestmark = [needs_gloo, pytest.mark.slow]

EPOCHS = 5
SECONDS = 600
"""Until the test gives up: some ten on an idle machine, many times as long where all cores are taken."""
WORDS = ["--data", "faulty_task:task", "--model", "faulty_task:net", "--method", "sam", "--perturbation", "global"]
WORDS += ["--batch-size", str(faulty_task.BATCH), "--epochs", str(EPOCHS), "--threads", "1"]
RUN = Config("faulty_task:task", "faulty_task:net", "sam", settings={"perturbation": "global"}, threads=1)
RUN = dataclasses.replace(RUN, epochs=EPOCHS, batch_size=faulty_task.BATCH)


def torchrun(folder, name, restarts):
    """Start the run on two ranks of this machine, at a port that is free."""
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command = [*agent, "--nproc-per-node", "2", "--max-restarts", str(restarts), "-m", "esam", "train", *WORDS]
    environment = {**os.environ, "FAULTY_ONCE": str(folder / f"{name}-killed"), "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [*command, "--out", str(folder / name)], cwd=Path(__file__).parent, env=environment, stdout=log, stderr=log
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run both jobs at once, one that may restart and one that may not."""
    folder = tmp_path_factory.mktemp("faults")
    jobs = {name: torchrun(folder, name, restarts) for name, restarts in (("restarted", 1), ("ended", 0))}
    try:
        for name, job in jobs.items():
            (folder / f"{name}.code").write_text(str(job.wait(SECONDS)))
    finally:
        for job in jobs.values():
            if job.poll() is None:
                job.terminate()
                job.wait()
    return folder


def test_a_rank_that_is_killed_ends_the_job_with_a_message_that_says_what_to_do(folder):
    log = (folder / "ended.log").read_text()
    assert int((folder / "ended.code").read_text()) != 0, log
    assert (folder / "ended-killed").exists(), log
    assert "another rank of this run has ended" in log and "--max-restarts" in log, log
    assert "Signal 9 (SIGKILL)" in log, log  # torchrun's own words
    record = read_record(folder / "ended" / "record.jsonl")
    assert record.end is None
    assert Checkpoint(folder / "ended").load()["progress"]["epoch"] == faulty_task.KILLED_IN_EPOCH - 1


def test_torchrun_restarts_the_ranks_and_the_run_ends_as_an_undisturbed_one(folder, tmp_path):
    log = (folder / "restarted.log").read_text()
    assert (folder / "restarted.code").read_text() == "0", log
    assert (folder / "restarted-killed").exists(), log
    record = read_record(folder / "restarted" / "record.jsonl")
    assert record.finished and [line["epoch"] for line in record.epochs] == list(range(1, EPOCHS + 1))
    run(RUN, tmp_path / "alone")
    alone, there = (Checkpoint(place).load()["model"] for place in (tmp_path / "alone", folder / "restarted"))
    for name, weights in alone.items():  # float64: only the order of sums differs
        torch.testing.assert_close(there[name], weights, rtol=0, atol=1e-12)
    # what was ended goes on, on one rank, to the same weights
    assert run(RUN, folder / "ended").finished
    for name, weights in Checkpoint(folder / "ended").load()["model"].items():
        torch.testing.assert_close(weights, alone[name], rtol=0, atol=1e-12)
