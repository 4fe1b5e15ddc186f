"""Where are the records, and how is one added? Lines of one file, one a run."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from esam.files import folder_lock
from esam.runs.plan import CONFIG_NAME

from .run import Run, train
from .stages import Records


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


def main(folder: Path) -> None:
    """Do the run that is ordered in a folder, or go on with it: what a process of the pool does."""
    order = json.loads((folder / CONFIG_NAME).read_text())
    run, path = Run(**order["run"]), Path(order["records"])
    with folder_lock(folder):
        if run.key not in read(path):
            append(path, train(run, checkpoint=folder / "checkpoint.pt"))
