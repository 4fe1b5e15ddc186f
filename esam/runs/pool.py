"""How do the runs get done: so many at a time, none twice?

``Pool(jobs=2).run(runs)`` does them in processes on this machine, or on whatever ``executor`` it is given. Under
torchrun, all ranks train each run together, one after the other.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .plan import LOG_NAME, PlannedRun

if TYPE_CHECKING:
    from esam.train.distributed import Ranks

Order = tuple[str, str] | None
"""A worker's module and a run's folder, for every rank of torchrun; None: nothing is left."""


class StartedRun(Protocol):
    """A run that was started somewhere."""

    def poll(self) -> str | None:
        """Return None while it is running, then what went wrong: "" if nothing did."""

    def stop(self) -> None:
        """Ask it to end."""

    def wait(self) -> None:
        """Return when it has ended."""


class Executor(Protocol):
    """Where runs are done."""

    at_once: int
    """How many runs may be started before one of them has ended."""

    def start(self, run: PlannedRun) -> StartedRun:
        """Start a run, or resume it."""


class Pool:
    """Does the runs that are not finished yet, ``jobs`` at a time; after an interruption, the next call resumes.

    With ``reuse``, a process does one run after the other, which saves the start of a process for each; without, every
    run has a process of its own, and its peak memory is its own. An ``executor`` takes the place of these processes.
    """

    def __init__(
        self, jobs: int = 1, *, reuse: bool = False, executor: Executor | None = None, poll: float = 0.2
    ) -> None:
        self._own = Processes(jobs, reuse=reuse) if executor is None else None
        self.executor: Executor = executor or self._own  # type: ignore[assignment]
        self.poll = poll

    def run(self, runs: Sequence[PlannedRun], watch: Callable[[], None] = lambda: None) -> None:
        """Do every run; ``watch`` is called again and again. If runs failed, raises after the others have ended."""
        runs = list(dict.fromkeys(runs))
        waiting = [run for run in runs if not run.ended]
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # set by torchrun
            from esam.train.distributed import Ranks

            _lead(waiting, Ranks.current(), watch)
            return
        going: list[tuple[PlannedRun, StartedRun]] = []
        failures: list[str] = []
        try:
            while waiting or going:
                while waiting and len(going) < self.executor.at_once:
                    run = waiting.pop(0)
                    going.append((run, self.executor.start(run)))
                watch()
                time.sleep(self.poll)
                for run, started in list(going):
                    if (failure := started.poll()) is not None:
                        going.remove((run, started))
                        if failure:
                            failures.append(f"  {run.name}: {failure} ({run.folder / LOG_NAME})")
        finally:
            stop_all([started for _, started in going])
            if self._own is not None:
                self._own.close()
        watch()
        if failures:
            raise RuntimeError("\n".join([f"{len(failures)} of {len(runs)} runs failed:", *failures]))


def stop_all(started: Sequence[StartedRun]) -> None:
    """End runs; return when all have ended."""
    for run in started:
        run.stop()
    for run in started:
        run.wait()


def divergences(runs: Sequence[PlannedRun]) -> list[str]:
    """Return a line for each run that diverged, with what to change."""
    records = [record for run in runs if (record := run.record()) is not None and record.diverged]
    return [f"  {record.name}, seed {record.seed}: {(record.end or {}).get('error')}" for record in records]


class Processes:
    """Processes of this machine: a crash takes no other run with it, and all of them end with this process."""

    def __init__(self, jobs: int = 1, *, reuse: bool = False) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be 1 or more, got {jobs}")
        self.at_once, self._reuse = jobs, reuse
        self._idle: list[WorkerProcess] = []

    def start(self, run: PlannedRun) -> StartedRun:
        """Hand a run to a process."""
        run.prepare()
        kept = self._reuse and not run.config.compile  # graphs of earlier runs would count against compile's limits
        try:
            process = self._idle.pop() if kept else WorkerProcess(run)
        except IndexError:  # none is idle; asked like this, as several threads may start runs
            process = WorkerProcess(run)
        process.begin(run, self._idle.append if kept else WorkerProcess.end)
        return process

    def close(self) -> None:
        """End the idle processes."""
        while self._idle:
            self._idle.pop().end()


class WorkerProcess:
    """A process that does runs, one after the other, until it is stopped; ``first`` decides its threads."""

    def __init__(
        self, first: PlannedRun, *, environment: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> None:
        limit = {"OMP_NUM_THREADS": str(first.config.threads)} if first.config.threads else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "esam.runs.worker", str(first.folder)],  # the folder for whoever reads `ps`
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {}), **limit},
            cwd=cwd,
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read_answers, daemon=True).start()
        self._afterwards: Callable[[WorkerProcess], None] = WorkerProcess.end

    def begin(self, run: PlannedRun, afterwards: Callable[[WorkerProcess], None] | None = None) -> None:
        """Begin a run whose folder is prepared; ``afterwards`` is called when the process is free again."""
        (run.folder / LOG_NAME).unlink(missing_ok=True)  # an old failure must not be taken for a new one
        self._afterwards = afterwards or WorkerProcess.end
        order = {"worker": run.worker, "folder": str(run.folder.absolute())}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has crashed; poll says how
            self._process.stdin.write(f"{json.dumps(order)}\n".encode())
            self._process.stdin.flush()

    def poll(self, timeout: float = 0.0) -> str | None:
        """Return None while the run goes on; then what went wrong, "" if nothing did."""
        try:
            answer = self._answers.get(timeout > 0, timeout)
        except queue.Empty:
            return None
        if not answer:
            self.wait()
            return _exit_reason(self._process.wait())
        self._afterwards(self)
        return str(json.loads(answer)["failure"])

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._process.terminate()

    def wait(self) -> None:
        """Return when the process has ended."""
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """Stop the process and wait until it has ended."""
        self.stop()
        self.wait()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put(b"")  # the process has ended


def _exit_reason(code: int) -> str:
    """Say how a process ended that gave no answer."""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with exit code {code}"


# Under torchrun ------------------------------------------------------------------------------------------------------


@contextmanager
def followed(ranks: Ranks) -> Iterator[None]:
    """On rank 0: let the other ranks, which are in ``follow``, end after the block."""
    yield
    ranks.from_first(None)


def follow(ranks: Ranks) -> None:
    """On the other ranks: do each run that rank 0 does, until nothing is left. All ranks must see the folders."""
    nothing: Order = None
    while (order := ranks.from_first(nothing)) is not None:
        _carry_out(order)


def _lead(runs: Sequence[PlannedRun], ranks: Ranks, watch: Callable[[], None]) -> None:
    for run in runs:
        watch()
        run.prepare()
        order: Order = (run.worker, str(run.folder.absolute()))
        _carry_out(ranks.from_first(order))
    watch()


def _carry_out(order: Order) -> None:
    assert order is not None, "rank 0 has sent a run"
    worker, folder = order
    import_module(worker).main(Path(folder))
