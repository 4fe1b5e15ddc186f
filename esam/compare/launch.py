"""How do the runs get done: one process each, some at a time, none twice?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .plan import PlannedRun

LOG_NAME = "log.txt"
CHILD = "esam.compare.child"
"""Runs a worker that ends when this process does."""


class Launcher:
    """Runs what is not finished yet, ``jobs`` at a time; interrupted, the next launch resumes.

    Each run has a process of its own, so that its peak memory is its own, and a crash takes no other run along.
    """

    def __init__(self, runs: Sequence[PlannedRun], *, jobs: int = 1, poll: float = 0.5) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be 1 or more, got {jobs}")
        self.runs, self.jobs, self.poll = list(dict.fromkeys(runs)), jobs, poll

    def __call__(self, watch: Callable[[], None] = lambda: None) -> None:
        """Run everything; ``watch`` is called between looks. Raises after the others have ended if a run failed."""
        waiting = [run for run in self.runs if not _ended(run)]
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # of torchrun: its ranks train each run together
            from esam.train.ranks import Ranks

            from .together import lead

            lead(waiting, Ranks.current(), watch)
            return
        going: list[tuple[PlannedRun, subprocess.Popen[bytes]]] = []
        failed: list[str] = []
        try:
            while waiting or going:
                while waiting and len(going) < self.jobs:
                    run = waiting.pop(0)
                    going.append((run, _start(run)))
                watch()
                time.sleep(self.poll)
                for run, process in list(going):
                    if process.poll() is not None:
                        going.remove((run, process))
                        _close(process)
                        if process.returncode != 0:
                            failed.append(_complaint(run, process.returncode))
        finally:
            for _, process in going:
                process.terminate()
            for _, process in going:
                process.wait()
                _close(process)
        watch()
        if failed:
            raise RuntimeError("\n".join([f"{len(failed)} of {len(self.runs)} runs failed:", *failed]))


def _ended(run: PlannedRun) -> bool:
    """Tell whether a run is finished, or diverged, which it would do again."""
    record = run.record()
    return record is not None and (record.finished or record.diverged)


def divergences(runs: Sequence[PlannedRun]) -> list[str]:
    """Return a line for each run that diverged, with what to change."""
    records = [record for run in runs if (record := run.record()) is not None and record.diverged]
    return [f"  {record.name}, seed {record.seed}: {(record.end or {}).get('error')}" for record in records]


def _start(run: PlannedRun) -> subprocess.Popen[bytes]:
    run.prepare()
    environment = {**os.environ}
    if run.config.threads:
        environment["OMP_NUM_THREADS"] = str(run.config.threads)
    with (run.folder / LOG_NAME).open("wb") as log:  # fresh: an old complaint must not stand for a new one
        command = [sys.executable, "-m", CHILD, run.worker, str(run.folder)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


def _complaint(run: PlannedRun, code: int) -> str:
    lines = Path(run.folder / LOG_NAME).read_text(errors="replace").strip().splitlines()
    message = lines[-1] if lines else "no message"
    if code < 0:
        message = f"ended by {signal.Signals(-code).name}"
    return f"  {run.config.method}, seed {run.config.seed}: {message} ({run.folder / LOG_NAME})"
