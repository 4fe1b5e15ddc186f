"""How do the runs get done? Processes take one open run after the other; records are lines of one file."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import IO, Any

from .run import Run, train
from .stages import Records, open_runs


def read(path: Path) -> Records:
    """Return the records of a file of JSON lines, by key; a torn last line is left out."""
    found: Records = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        fields = {name: record[name] for name in Run.__dataclass_fields__}
        found[Run(**fields).key] = record
    return found


def append(path: Path, record: dict[str, Any]) -> None:
    """Add a record as one line, while no other process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def claim(folder: Path, run: Run) -> IO[str] | None:
    """Return a lock on a run, which ends with the process that holds it; None where another has it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / run.key).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def end_with_parent() -> None:
    """Let this process end when the one that started it is gone, killed for example."""
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def work(stages: list[str], tasks: list[str], path: Path) -> None:
    """Take one open run after the other, until none is left and nobody else is at one."""
    end_with_parent()
    scratch = path.with_suffix(".scratch")
    while True:
        records = read(path)
        runs = [run for task in tasks for stage in stages for run in open_runs(records, stage, [task])]
        for run in runs:
            if lock := claim(scratch, run):
                break
        else:
            if not runs:
                return
            time.sleep(5)  # all that is open is another's: what it finds may open more
            continue
        if run.key not in read(path):
            began = time.time()
            record = train(run, checkpoint=scratch / f"{run.key}.pt")
            append(path, record)
            score = f"{record.get('accuracy', float('nan')):.2f} % {record.get('loss', float('nan')):.3f}"
            print(f"{run} -> {score}, {record['seconds']:.0f} s ({time.time() - began:.0f} s)", flush=True)
        lock.close()
