"""Is every run done once, as it would be alone; and does none outlive the command that started it?"""

import dataclasses
import io
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import timeless
from filelock import FileLock
from rich.console import Console

from esam.runs import Comparison, PlannedRun, Processes, plan, pool, run_all
from esam.runs.live import run_and_show
from esam.runs.plan import Job
from esam.train import Config, run
from esam.train.loaded_run import MEASURES

TINY = Config(data="digits", model="mlp", method="esam", train_size=200, batch_size=50, epochs=2, threads=1)

pytestmark = pytest.mark.usefixtures("own_cache")


def files(runs):
    return {path: path.stat().st_mtime_ns for run in runs for path in run.folder.iterdir()}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Three runs by two processes, one of which is used twice, without a terminal; and what was printed meanwhile."""
    runs = plan(Comparison(TINY, ("base", "esam", "sam"), (0,)), tmp_path_factory.mktemp("done"))
    text = io.StringIO()
    with Processes(2, reuse=True) as processes:
        run_and_show(runs, processes, Console(file=text, width=100))
    return runs, text.getvalue()


@pytest.mark.slow
def test_processes_fresh_or_reused_record_what_the_same_runs_record_in_this_one(done, tmp_path):
    for planned in done[0]:
        here, there = run(planned.config, tmp_path / planned.folder.name, measures=MEASURES), planned.record()
        assert there.finished and there.end["sharpness"] > 0
        assert timeless([*here.epochs, here.end]) == timeless([*there.epochs, there.end])


def test_finished_runs_are_not_touched_again(done, monkeypatch):
    runs, _ = done
    before, looks = files(runs), []
    monkeypatch.setattr(pool, "WorkerProcess", None)  # starting anything would fail
    run_all([*runs, *runs], Processes(), lambda: looks.append(1))
    assert files(runs) == before and looks == [1]


def test_without_a_terminal_each_epoch_is_a_plain_line(done):
    runs, text = done
    assert "\x1b" not in text
    for planned in runs:
        last = planned.record().epochs[-1]
        figures = f"train loss {last['train_loss']:.3f}, test {100 * last['test_accuracy']:.2f} %"
        assert text.count(f"{planned.config.method}, seed 0: epoch 2 of 2, {figures}\n") == 1


def unfinished(folder, count, worker="esam.runs.worker", **changes):
    config = dataclasses.replace(TINY, **changes)
    return [PlannedRun(dataclasses.replace(config, seed=n), folder / str(n), worker) for n in range(count)]


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Write a worker module whose main is this code; give its name."""

    def written(code):
        name = f"worker{len(list(tmp_path.glob('worker*.py')))}"
        (tmp_path / f"{name}.py").write_text(f"import os, signal, sys, time\ndef main(folder):\n    {code}\n")
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return written


@pytest.mark.parametrize(
    ("code", "message", "reuse"),
    [
        ("print('heard'); raise ValueError('old age')", "ValueError: old age", True),
        ("sys.exit(3)", r"it called sys.exit\(3\)", False),
        ("os._exit(7)", "its process ended with exit code 7", True),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL", False),
    ],
)
def test_a_run_that_fails_is_reported_with_its_reason_and_stops_no_other(tmp_path, worker, code, message, reuse):
    bad = unfinished(tmp_path / "bad", 1, worker(code))
    good = unfinished(tmp_path / "good", 2, worker("(folder / 'done').touch()"))
    match = f"1 of 3 runs failed:\n  esam, seed 0: {message} .*log.txt"
    with pytest.raises(RuntimeError, match=match), Processes(reuse=reuse) as processes:
        run_all([*bad, *good], processes, poll=0.01)
    assert all((run.folder / "done").exists() for run in good)
    assert "heard" not in code or (bad[0].folder / "log.txt").read_text().startswith("heard")


def test_no_more_runs_go_on_at_a_time_than_jobs_and_an_interruption_ends_them(tmp_path, worker):
    runs, most = unfinished(tmp_path, 4, worker("(folder / 'begun').touch(); time.sleep(600)")), []

    def interrupt():
        most.append(sum((run.folder / "begun").exists() for run in runs))
        if most[-1] == 2 and len(most) > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Processes(2) as processes:
        run_all(runs, processes, interrupt, poll=0.02)
    assert max(most) == 2
    with pytest.raises(ValueError, match="jobs must be 1 or more, got 0"):
        Processes(0)


LAUNCH = """
import sys
from pathlib import Path
from esam.runs import PlannedRun, Processes, run_all
from esam.train import Config
run_all([PlannedRun(Config(), Path(sys.argv[1]), worker=sys.argv[2])], Processes())
"""
HOLD = "from esam.files import folder_lock\n    with folder_lock(folder): (folder / 'held').touch(); time.sleep(600)"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_a_run_ends_with_its_parent_however_that_is_ended_and_its_folder_is_free(tmp_path, worker, end):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = subprocess.Popen([sys.executable, "-c", LAUNCH, tmp_path, worker(HOLD)], env=environment)
    while not (tmp_path / "held").exists():  # by the run, with the lock of its folder
        assert command.poll() is None
        time.sleep(0.02)
    command.send_signal(getattr(signal, end))
    assert command.wait(timeout=300) == -getattr(signal, end)
    with FileLock(tmp_path / ".lock", timeout=300):  # raises Timeout if the run lives on
        pass


def test_results_decide_what_comes_next_and_what_failed_is_not_tried_again(tmp_path, worker):
    good, bad = worker("(folder / 'done').touch()"), worker("sys.exit(3)")
    asked = []

    def next_runs():
        done = sum((tmp_path / str(n) / "done").exists() for n in range(3))
        asked.append(done)
        return [Job(tmp_path / "bad", bad, "bad", "{}"), Job(tmp_path / str(done), good, f"run {done}", "{}")][
            : 4 - done
        ]

    with pytest.raises(RuntimeError, match="1 of 4 runs failed:\n  bad: it called"), Processes(2) as processes:
        run_all(next_runs, processes, poll=0.01)
    assert max(asked) == 3
