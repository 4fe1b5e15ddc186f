"""How do the runs get done: so many at a time, none twice?

``run_all(runs, executor)`` does them in processes on this machine (``Processes``), or on a Ray cluster. Under torchrun,
all ranks train each run together, one after the other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from . import worker
from .plan import LOG_NAME, Job, PlannedRun, write_order

if TYPE_CHECKING:
    from .ray import RayCluster, RayRun

Run = PlannedRun | Job


def run_all(
    runs: Sequence[Run] | Callable[[], Sequence[Run]],
    executor: Processes | RayCluster,
    watch: Callable[[], None] = lambda: None,
    *,
    poll: float = 0.2,
) -> None:
    """Do the runs that have not ended yet; after an interruption, the next call resumes.

    Where results decide what comes next, ``runs`` is a function that returns what is open now: it is asked again after
    each run. ``watch`` is called again and again. If runs failed, this raises after the others have ended.
    """
    ask = runs if callable(runs) else lambda: runs
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # set by torchrun
        return _run_on_every_rank(dict.fromkeys(ask()), watch)
    begun: set[Run] = set()

    def open_runs() -> list[Run]:
        return [run for run in dict.fromkeys(ask()) if run not in begun and not run.ended]

    going: dict[Run, WorkerProcess | RayRun] = {}
    failures: list[str] = []
    waiting = open_runs()
    try:
        while waiting or going:
            while waiting and len(going) < executor.at_once:
                run = waiting.pop(0)
                begun.add(run)
                going[run] = executor.start(run)
            watch()
            time.sleep(poll)
            for run, started in list(going.items()):
                if (failure := started.poll()) is not None:
                    del going[run]
                    failures += [f"  {run.name}: {failure} ({run.folder / LOG_NAME})"] if failure else []
                    waiting = open_runs()
    finally:
        for started in going.values():
            started.end()
    watch()
    if failures:
        raise RuntimeError("\n".join([f"{len(failures)} of {len(begun)} runs failed:", *failures]))


def _run_on_every_rank(runs: Iterable[Run], watch: Callable[[], None]) -> None:
    """Do each run on all ranks together, which call this alike; all must see the folders."""
    from esam.train.distributed import Ranks

    ranks = Ranks.current()
    for run in runs:
        watch()
        if ranks.first:
            write_order(run)
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
        self._started: list[WorkerProcess] = []

    def start(self, run: Run) -> WorkerProcess:
        """Hand a run to a process."""
        write_order(run)
        process = next((process for process in self._started if process.idle), None)
        if process is None:
            process = WorkerProcess(self._reuse)
            self._started.append(process)
        process.begin(run)
        return process

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.end()


class WorkerProcess:
    """A process that does one run, or with ``reuse`` one after the other until it is ended."""

    def __init__(self, reuse: bool) -> None:
        self.idle, self._reuse = False, reuse
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=worker.serve, args=(theirs,))
        self._process.start()
        theirs.close()  # so that the end of the process is seen

    def begin(self, run: Run) -> None:
        """Begin a run whose folder is prepared."""
        self.idle = False
        (run.folder / LOG_NAME).unlink(missing_ok=True)  # an old failure must not be taken for a new one
        with suppress(BrokenPipeError):  # it has crashed; poll says how
            self._pipe.send((run.worker, run.folder.absolute()))

    def poll(self) -> str | None:
        """Return None while the run goes on; then what went wrong, "" if nothing did."""
        try:
            if not self._pipe.poll():
                return None
            failure = str(self._pipe.recv())
        except (EOFError, ConnectionResetError):  # it has ended without an answer
            self._process.join()
            code = self._process.exitcode or 0
            return f"ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with exit code {code}"
        self.idle = self._reuse
        if not self._reuse:
            self.end()
        return failure

    def end(self) -> None:
        """End the process, whatever it is doing; return when it has ended."""
        self._process.terminate()
        self._process.join()
