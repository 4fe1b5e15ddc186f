"""How do the runs get done: some at a time, none twice, none lost?"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from esam.compare.plan import PlannedRun

from .worker import record_failure, serve

Tell = Callable[[str], None]


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    run: PlannedRun | None = None


class Engine:
    """Worker processes that live until the work is done; leave the block, and they end."""

    def __init__(self, jobs: int, tell: Tell) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be 1 or more, got {jobs}")
        self._jobs, self._tell, self._workers = jobs, tell, list[_Worker]()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()

    def make(self, name: str, runs: Iterable[PlannedRun]) -> None:
        """Do the runs that are not done yet, in this order; return when all have ended."""
        todo = deque(run for run in runs if not ended(run))
        total, started = len(todo), time.monotonic()
        while len(self._workers) < min(self._jobs, total):
            self._workers.append(_started())
        while todo or any(worker.run for worker in self._workers):
            for place, worker in enumerate(self._workers):
                if worker.run is None and todo:
                    if not worker.process.is_alive():
                        self._workers[place] = worker = _started()
                    worker.run = todo.popleft()
                    worker.pipe.send((worker.run.config.as_json(), worker.run.folder))
            for pipe in wait([worker.pipe for worker in self._workers if worker.run]):
                self._take_answer(next(worker for worker in self._workers if worker.pipe is pipe), name)
                left = len(todo) + sum(worker.run is not None for worker in self._workers)
                spent = time.monotonic() - started
                self._tell(
                    f"  {name}: {total - left} of {total}, {spent / 60:.1f} min, left {_left(spent, total, left)}"
                )

    def _take_answer(self, worker: _Worker, name: str) -> None:
        run = worker.run
        assert run is not None
        try:
            answer = worker.pipe.recv()
        except EOFError:  # killed, or out of memory
            worker.process.join()
            answer = f"failed (its process ended with {worker.process.exitcode})"
            record_failure(run.config, run.folder, answer)
            self._workers[self._workers.index(worker)] = _started()
        worker.run = None
        self._tell(f"{'/'.join(run.folder.parts[-4:-1])} seed {run.config.seed}: {answer}")


def ended(run: PlannedRun) -> bool:
    """Tell whether a run has an end, good or bad."""
    record = run.record()
    return record is not None and record.end is not None


def _started() -> _Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there,), daemon=True)
    process.start()
    there.close()  # else its end would never be seen as closed
    return _Worker(process, here)


def _left(spent: float, total: int, left: int) -> str:
    return f"about {spent * left / max(1, total - left) / 60:.0f} min"
