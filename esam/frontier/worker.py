"""What does a worker do? One run after the other, in a process that keeps torch and the data loaded.

``python -m esam.frontier.worker FOLDER`` does the one whose configuration stands in the folder.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esam.train.record import RunRecord

NICENESS = 10


def serve(pipe: Connection) -> None:
    """Take runs (configuration, folder) from the pipe until it closes; answer each with a word on how it went."""
    with suppress(OSError, AttributeError):
        os.nice(NICENESS)
    with suppress(EOFError, OSError, KeyboardInterrupt):  # the other end is gone: so is the work
        while (work := pipe.recv()) is not None:
            pipe.send(attempt(*work))


def attempt(values: dict[str, Any], folder: Path) -> str:
    """Do a run and remove its checkpoints; a failure is written into the run's record."""
    from esam.train.checkpoint import Checkpoint
    from esam.train.config import Config
    from esam.train.runs import run

    config = Config.from_json(values)
    try:
        record = run(config, folder)
    except Exception as error:  # whatever it is, the other runs go on
        record_failure(config, folder, f"{type(error).__name__}: {error}")
        return f"failed ({error})"
    checkpoint = Checkpoint(folder)
    for path in (checkpoint.path, checkpoint.previous, folder / ".lock"):
        path.unlink(missing_ok=True)
    return how_it_went(record)


def how_it_went(record: RunRecord) -> str:
    """Return a word on a run that has ended."""
    assert record.end is not None
    if record.end["status"] == "failed":
        return f"failed ({record.end['error']})"
    last, seconds = record.end["test_accuracy"]["last"], record.end["cpu_seconds"]
    accuracy = "no accuracy" if last is None else f"{100 * last:.2f} %"
    diverged = ", diverged" if record.epochs[-1]["train_loss"] is None else ""
    return f"{accuracy} in {seconds:.1f} s{diverged}"


def record_failure(config: Any, folder: Path, message: str) -> None:
    """End a run's record as failed, with what was evaluated until then."""
    from esam.train.environment import environment
    from esam.train.record import RECORD_NAME, RecordWriter, read_record

    path = folder / RECORD_NAME
    if path.exists():
        record = read_record(path)
        if record.end is not None:
            return
        writer = RecordWriter(record)
        evaluated = [line["test_accuracy"] for line in record.epochs if line.get("test_accuracy") is not None]
    else:
        first = {"id": config.id(), "name": config.method, "method": config.method, "seed": config.seed}
        writer = RecordWriter.create(path, {**first, "config": config.as_json(), "environment": environment()})
        evaluated = []
    best = {"last": evaluated[-1], "best": max(evaluated)} if evaluated else {"last": None, "best": None}
    writer.end(status="failed", test_accuracy=best, error=message)


if __name__ == "__main__":
    from esam.compare.plan import CONFIG_NAME

    place = Path(sys.argv[1])
    attempt(json.loads((place / CONFIG_NAME).read_text()), place)
