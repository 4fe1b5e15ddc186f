"""Does a run outlive the command that started it, and keep the next one out?"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from esam.compare import child

LAUNCH = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
from pathlib import Path
from esam.compare import Launcher, PlannedRun
from esam.train import Config
Launcher([PlannedRun(Config(), Path(sys.argv[1]), worker="holding_worker")], poll=0.05)()
"""


def started(folder):
    """Start a command whose only run holds the lock of its folder; return it once the run does."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = subprocess.Popen([sys.executable, "-c", LAUNCH, folder], env={**os.environ, "PYTHONPATH": path})
    while not (folder / "held").exists():
        assert command.poll() is None
        time.sleep(0.02)
    return command


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("end", ["SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_run_ends_with_its_parent_however_that_is_ended_and_its_folder_is_free(tmp_path, end):
    command = started(tmp_path)
    command.send_signal(getattr(signal, end))
    assert command.wait(timeout=300) == -getattr(signal, end)
    with FileLock(tmp_path / ".lock", timeout=300):  # raises Timeout if the run lives on
        pass


def test_a_worker_is_run_as_a_program_with_its_folder_as_argument(tmp_path):
    (tmp_path / "telling_worker.py").write_text("import sys\nif __name__ == '__main__': sys.exit(str(sys.argv))")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", child.__name__, "telling_worker", "a folder"]
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as worker:
        told = worker.stderr.read()  # its standard input stays open meanwhile
    assert worker.returncode == 1 and told.strip().endswith("telling_worker.py', 'a folder']")
