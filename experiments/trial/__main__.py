"""Work through the runs of a stage; what is done is kept, so call it again at any time."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path

from .judge import finished
from .pool import read, work
from .stages import SMALL, TUNED, Missing, Records, pilot, tuned

RECORDS = Path("results/trial.jsonl")


def status(records: Records, tasks: list[str]) -> None:
    """Print what has been chosen so far."""
    for task in tasks:
        for arm in ("pilot", *TUNED):
            try:
                print(task, arm, pilot(records, task) if arm == "pilot" else tuned(records, task, arm))
            except Missing as missing:
                print(task, arm, missing)


def main() -> None:
    """Parse and go."""
    parser = argparse.ArgumentParser(prog="python -m experiments.trial", description=__doc__)
    parser.add_argument("stages", nargs="+", choices=["pilot", "tune", "final", "last", "status", "judge"])
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each (default 2)")
    parser.add_argument("--tasks", default=",".join(SMALL), help="separated by commas (default: %(default)s)")
    parser.add_argument("--records", type=Path, default=RECORDS, help="default %(default)s")
    options = parser.parse_args()
    tasks = options.tasks.split(",")
    if "status" in options.stages:
        return status(read(options.records), tasks)
    if "judge" in options.stages:
        from . import page

        judged = finished(read(options.records))
        print(page.answered(judged), page.tables(judged), sep="\n\n")
        return page.figure(judged) if judged else None
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(options.stages, tasks, options.records)) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a process ended early; its run is open: call this again")


if __name__ == "__main__":
    main()
