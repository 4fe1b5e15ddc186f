"""Work through the runs of a stage; what is done is kept, so call it again at any time."""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path

from esam.runs import Processes, run_all
from esam.runs.plan import Job

from . import records as worker
from .judge import finished
from .records import read
from .stages import SMALL, TUNED, Missing, Records, open_runs, pilot, tuned

RECORDS = Path("results/trial.jsonl")


def open_jobs(stages: list[str], tasks: list[str], path: Path) -> list[Job]:
    """Return what can be run now, task by task."""
    records, path = read(path), path.absolute()
    print(f"{time.strftime('%H:%M:%S')} {len(records)} records", flush=True)
    runs = [run for task in tasks for stage in stages for run in open_runs(records, stage, [task])]
    scratch = path.with_suffix(".scratch")
    orders = {run: json.dumps({"run": asdict(run), "records": str(path)}) for run in runs}
    return [Job(scratch / run.key, worker.__name__, str(run), order) for run, order in orders.items()]


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
    with Processes(options.jobs, reuse=True) as processes:
        run_all(lambda: open_jobs(options.stages, tasks, options.records), processes, poll=1)


if __name__ == "__main__":
    main()
