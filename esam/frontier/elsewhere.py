"""How do the arena's runs get done on a cluster? Through the launcher of comparisons, with the same records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from esam.compare.launch import LOG_NAME, Launcher, Place
from esam.compare.plan import CONFIG_NAME, PlannedRun

from .engine import ended
from .worker import how_it_went, record_failure

WORKER = "esam.frontier.worker"


class Elsewhere:
    """Does runs at another place; a run whose process is lost for good is recorded as failed."""

    def __init__(self, place: Place, tell: Callable[[str], None], poll: float = 0.5) -> None:
        self._place, self._tell, self._poll = place, tell, poll

    def make(self, name: str, runs: Iterable[PlannedRun]) -> None:
        """Do the runs that are not done yet; return when all have ended."""
        going = [replace(run, worker=WORKER) for run in runs if not ended(run)]
        total = len(going)

        def watch() -> None:
            for run in [run for run in going if ended(run)]:
                going.remove(run)
                record = run.record()
                assert record is not None
                self._tell(f"{'/'.join(run.folder.parts[-4:-1])} seed {run.config.seed}: {how_it_went(record)}")
                self._tell(f"  {name}: {total - len(going)} of {total}")

        everything = list(going)
        with suppress(RuntimeError):  # told below, in the records
            Launcher(everything, poll=self._poll, place=self._place)(watch)
        for run in everything:
            if not ended(run):
                record_failure(run.config, run.folder, "its process was lost")
            for left in (CONFIG_NAME, LOG_NAME):
                (run.folder / left).unlink(missing_ok=True)
        watch()
