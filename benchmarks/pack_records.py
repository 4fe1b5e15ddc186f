"""Pack the finished runs below a folder into one file: ``python benchmarks/pack_records.py FOLDER NAME.jsonl.xz``.

Of each run the epochs that were evaluated are kept, and every tenth: no table or figure of ours reads the others.
"""

import json
import sys
from pathlib import Path

from esam.train.record import RECORD_NAME, write_pack

EVERY = 10


def kept(line):
    """Whether a line of a record goes into the pack."""
    return line["kind"] != "epoch" or "test_loss" in line or line["epoch"] % EVERY in (0, 1)


def finished_runs(folder):
    """Return the lines of every finished run by its path in the folder."""
    files = {}
    for path in sorted(Path(folder).rglob(RECORD_NAME)):
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        if lines[-1]["kind"] == "end":
            files[path.relative_to(folder).as_posix()] = [line for line in lines if kept(line)]
    return files


if __name__ == "__main__":
    write_pack(sys.argv[2], finished_runs(sys.argv[1]))
