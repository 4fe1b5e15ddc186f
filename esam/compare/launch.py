"""How do the runs get done: some at a time, none twice? Here, in a process each, unless another place is given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from .plan import PlannedRun

LOG_NAME = "log.txt"
CHILD = "esam.compare.child"
"""Runs a worker that ends when this process does."""


class StartedRun(Protocol):
    """A run that was started somewhere."""

    def look(self) -> str | None:
        """Return None while it goes on; then what went wrong, and no word where nothing did."""

    def stop(self) -> None:
        """Ask it to end."""

    def wait(self) -> None:
        """Return when it has ended."""


class Place(Protocol):
    """Where runs are done."""

    at_once: int
    """Runs that may be started before one of them has ended."""

    def start(self, run: PlannedRun) -> StartedRun:
        """Start a run, or what is left of it."""


class Launcher:
    """Runs what is not finished yet, ``jobs`` at a time; interrupted, the next launch resumes.

    Another ``place`` than this machine has its own say on how many go on at a time.
    """

    def __init__(
        self, runs: Sequence[PlannedRun], *, jobs: int = 1, poll: float = 0.5, place: Place | None = None
    ) -> None:
        self.runs, self.poll = list(dict.fromkeys(runs)), poll
        self.place = Processes(jobs) if place is None else place

    def __call__(self, watch: Callable[[], None] = lambda: None) -> None:
        """Run everything; ``watch`` is called between looks. Raises after the others have ended if a run failed."""
        waiting = [run for run in self.runs if not _ended(run)]
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # of torchrun: its ranks train each run together
            from esam.train.ranks import Ranks

            from .together import lead

            lead(waiting, Ranks.current(), watch)
            return
        going: list[tuple[PlannedRun, StartedRun]] = []
        failed: list[str] = []
        try:
            while waiting or going:
                while waiting and len(going) < self.place.at_once:
                    run = waiting.pop(0)
                    going.append((run, self.place.start(run)))
                watch()
                time.sleep(self.poll)
                for run, started in list(going):
                    if (complaint := started.look()) is not None:
                        going.remove((run, started))
                        if complaint:
                            failed.append(told(run, complaint))
        finally:
            stop_all([started for _, started in going])
        watch()
        if failed:
            raise RuntimeError("\n".join([f"{len(failed)} of {len(self.runs)} runs failed:", *failed]))


class Processes:
    """This machine: each run in a process of its own, so that its peak memory is its own, and a crash takes no other.

    ``jobs`` of them at a time.
    """

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be 1 or more, got {jobs}")
        self.at_once = jobs

    def start(self, run: PlannedRun) -> StartedRun:
        """Start a run's process."""
        return _Process(run, _start(run))


class _Process:
    def __init__(self, run: PlannedRun, process: subprocess.Popen[bytes]) -> None:
        self._run, self._process = run, process

    def look(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        self._close()
        return "" if code == 0 else complaint_of(self._run.folder, code)

    def stop(self) -> None:
        self._process.terminate()

    def wait(self) -> None:
        self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def stop_all(started: Sequence[StartedRun]) -> None:
    """End runs that go on; return when all have ended."""
    for one in started:
        one.stop()
    for one in started:
        one.wait()


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
    return start_process(run)


def start_process(
    run: PlannedRun, *, environment: Mapping[str, str] | None = None, cwd: str | None = None
) -> subprocess.Popen[bytes]:
    """Start the process of a run whose folder is prepared; whatever it prints goes to a file there."""
    environment = {**os.environ, **(environment or {})}
    if run.config.threads:
        environment["OMP_NUM_THREADS"] = str(run.config.threads)
    with (run.folder / LOG_NAME).open("wb") as log:  # fresh: an old complaint must not stand for a new one
        command = [sys.executable, "-m", CHILD, run.worker, str(run.folder)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, cwd=cwd)


def complaint_of(folder: Path, code: int) -> str:
    """Return what a run's process said last, or the signal that ended it."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = (folder / LOG_NAME).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"


def told(run: PlannedRun, complaint: str) -> str:
    """Return a line on a run that failed."""
    return f"  {run.config.method}, seed {run.config.seed}: {complaint} ({run.folder / LOG_NAME})"
