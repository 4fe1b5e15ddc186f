"""How are many records kept as one file? As a pack: JSON lines, one a file, compressed by xz.

The same files are the same bytes, in whatever order they are given. The finished runs below a folder are packed by
``python -m experiments.packs FOLDER NAME.jsonl.xz``: of each the epochs that were evaluated, and every tenth; no table
or figure of ours reads the others.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esam.files import write_atomically
from esam.train.record import RECORD_NAME, RunRecord, encode, parse_record

SUFFIX = ".jsonl.xz"
EVERY = 10

Line = dict[str, Any]


def write_pack(path: Path, files: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the lines of files, by their names within the pack, as one pack."""
    if not path.name.endswith(SUFFIX):
        raise ValueError(f"a pack's name ends with {SUFFIX}, got {path.name}")
    packed = [{"name": name, "lines": list(files[name])} for name in sorted(files)]
    texts = (json.dumps(file, allow_nan=False, separators=(",", ":")) for file in packed)
    write_atomically(path, lzma.compress("".join(f"{text}\n" for text in texts).encode("ascii"), preset=9))


def read_pack(path: Path) -> dict[str, list[Line]]:
    """Return the lines of the files of a pack, by name."""
    try:
        packed = map(json.loads, lzma.decompress(path.read_bytes()).splitlines())
        return {str(file["name"]): list(file["lines"]) for file in packed}
    except (lzma.LZMAError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no pack ({error!r}); restore the file") from error


def packed_records(path: Path) -> list[RunRecord]:
    """Return the records in a pack, sorted by name and seed."""
    packed = {path / name: lines for name, lines in read_pack(path).items() if name.endswith(RECORD_NAME)}
    records = [parse_record(place, b"".join(map(encode, lines))) for place, lines in sorted(packed.items())]
    return sorted(records, key=lambda record: (record.name, record.seed))


def finished_runs(folder: Path) -> dict[str, list[Line]]:
    """Return the lines to keep of every finished run below a folder, by its path there."""
    files = {}
    for path in sorted(folder.rglob(RECORD_NAME)):
        lines: list[Line] = [json.loads(text) for text in path.read_text().splitlines()]
        if lines[-1]["kind"] == "end":
            files[path.relative_to(folder).as_posix()] = [line for line in lines if _kept(line)]
    return files


def _kept(line: Line) -> bool:
    return line["kind"] != "epoch" or "test_loss" in line or line["epoch"] % EVERY in (0, 1)


if __name__ == "__main__":
    write_pack(Path(sys.argv[2]), finished_runs(Path(sys.argv[1])))
