"""How do the runs get done: so many at a time, none twice?

``run_all(runs, executor)`` does them in processes on this machine (``Processes``), or on a Ray cluster. Under torchrun,
all ranks train each run together, one after the other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Protocol

from . import worker
from .plan import LOG_NAME, PlannedRun


class StartedRun(Protocol):
    """A run that was started somewhere."""

    def poll(self) -> str | None:
        """Return None while it is running, then what went wrong: "" if nothing did."""

    def end(self) -> None:
        """End it, whatever it is doing; return when it has ended."""


class Executor(Protocol):
    """Where runs are done."""

    at_once: int
    """How many runs may be started before one of them has ended."""

    def start(self, run: PlannedRun) -> StartedRun:
        """Start a run, or resume it."""


def run_all(
    runs: Sequence[PlannedRun], executor: Executor, watch: Callable[[], None] = lambda: None, *, poll: float = 0.2
) -> None:
    """Do the runs that have not ended yet; after an interruption, the next call resumes.

    ``watch`` is called again and again. If runs failed, this raises after the others have ended.
    """
    runs = list(dict.fromkeys(runs))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # set by torchrun
        _run_on_every_rank(runs, watch)
        return
    waiting = [run for run in runs if not run.ended]
    going: list[tuple[PlannedRun, StartedRun]] = []
    failures: list[str] = []
    try:
        while waiting or going:
            while waiting and len(going) < executor.at_once:
                run = waiting.pop(0)
                going.append((run, executor.start(run)))
            watch()
            time.sleep(poll)
            for run, started in list(going):
                if (failure := started.poll()) is not None:
                    going.remove((run, started))
                    if failure:
                        failures.append(f"  {run.name}: {failure} ({run.folder / LOG_NAME})")
    finally:
        for _, started in going:
            started.end()
    watch()
    if failures:
        raise RuntimeError("\n".join([f"{len(failures)} of {len(runs)} runs failed:", *failures]))


def _run_on_every_rank(runs: Sequence[PlannedRun], watch: Callable[[], None]) -> None:
    """Do each run on all ranks together, which call this alike; all must see the folders."""
    from esam.train.distributed import Ranks

    ranks = Ranks.current()
    for run in runs:
        watch()
        if ranks.first:
            run.prepare()
        ranks.from_first(None)  # the folder is prepared
        import_module(run.worker).main(run.folder)
    watch()


class Processes:
    """Processes of this machine: a crash takes no other run with it, and all of them end with this process.

    With ``reuse``, a process does one run after the other, which saves the start of a process for each; without, every
    run has a process of its own, and its peak memory is its own.
    """

    def __init__(self, jobs: int = 1, *, reuse: bool = False) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be 1 or more, got {jobs}")
        self.at_once, self._reuse = jobs, reuse
        self._all: list[WorkerProcess] = []
        self._idle: list[WorkerProcess] = []

    def start(self, run: PlannedRun) -> StartedRun:
        """Hand a run to a process."""
        run.prepare()
        kept = self._reuse and not run.config.compile  # graphs of earlier runs would count against compile's limits
        try:
            process = self._idle.pop() if kept else self._new()
        except IndexError:  # none is idle; asked like this, as several threads may start runs
            process = self._new()
        process.begin(run, self._idle.append if kept else WorkerProcess.end)
        return process

    def _new(self) -> WorkerProcess:
        self._all.append(WorkerProcess())
        return self._all[-1]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.end()


class WorkerProcess:
    """A process that does runs, one after the other, until it is ended."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=worker.serve, args=(theirs,))
        self._process.start()
        theirs.close()  # so that the end of the process is seen

    def begin(self, run: PlannedRun, afterwards: Callable[[WorkerProcess], None]) -> None:
        """Begin a run whose folder is prepared; ``afterwards`` is called when the process is free again."""
        (run.folder / LOG_NAME).unlink(missing_ok=True)  # an old failure must not be taken for a new one
        self._afterwards = afterwards
        with suppress(BrokenPipeError):  # it has crashed; poll says how
            self._pipe.send((run.worker, run.folder.absolute()))

    def poll(self) -> str | None:
        """Return None while the run goes on; then what went wrong, "" if nothing did."""
        try:
            failure: str | None = self._pipe.recv() if self._pipe.poll() else None
        except (EOFError, ConnectionResetError):  # it has ended without an answer
            self._process.join()
            code = self._process.exitcode or 0
            return f"ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with exit code {code}"
        if failure is not None:
            self._afterwards(self)
        return failure

    def end(self) -> None:
        """End the process, whatever it is doing; return when it has ended."""
        self._process.terminate()
        self._process.join()
