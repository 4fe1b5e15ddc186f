"""Where are measurements kept? As JSON-lines files below a folder while they are made; committed as one pack."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock

from esam.files import write_atomically
from experiments.packs import read_pack, write_pack

PACK = Path(__file__).resolve().parents[2] / "results" / "paper.jsonl.xz"
FIRST_ROUND = PACK.with_name("paper_first_round.jsonl.xz")
RECORD, EPOCHS = "record.jsonl", "epochs.jsonl"

Line = dict[str, Any]


class Store:
    """Measurements by name: what is committed, which is never replaced, and what was made here since."""

    def __init__(self, folder: Path, pack: Path | None = PACK) -> None:
        self.folder, self.pack = folder, pack

    @cached_property
    def committed(self) -> dict[str, list[Line]]:
        """The files of the pack."""
        return read_pack(self.pack) if self.pack is not None and self.pack.exists() else {}

    def lines(self, name: str) -> list[Line] | None:
        """Return a file's lines, None where there is no such file."""
        if name in self.committed:
            return self.committed[name]
        path = self.folder / name
        if not path.exists():
            return None
        texts = path.read_text().splitlines()
        return [json.loads(text) for text in texts if text.endswith("}")]

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all files below a folder of the store."""
        made = {path.relative_to(self.folder).as_posix() for path in (self.folder / prefix).rglob("*.jsonl")}
        return sorted(made | {name for name in self.committed if name.startswith(prefix)})

    def write(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write a file, whole or not at all."""
        if name in self.committed:
            raise ValueError(f"{name} is committed in {self.pack} and stays as it is; give it another name")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(f"{json.dumps(line, allow_nan=False)}\n" for line in lines).encode())

    def end(self, name: str) -> Line | None:
        """Return the last line of a finished run, None where it is not finished."""
        lines = self.lines(f"{name}/{RECORD}")
        return lines[-1] if lines and lines[-1].get("status") == "finished" else None

    def commit(self) -> int:
        """Add what was finished here to the pack; return how many files that were."""
        assert self.pack is not None, "there is a pack to write"
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "commit.lock"):  # another command may add to it at the same time
            self.__dict__.pop("committed", None)
            here = [name for name in self.names() if name not in self.committed and ".work." not in name]
            found = {name: lines for name in here if (lines := self._finished(name))}
            if found:
                write_pack(self.pack, {**self.committed, **found})
                del self.committed
        return len(found)

    def _finished(self, name: str) -> list[Line]:
        """Return the lines of a file that are to be kept, none before it is finished."""
        lines, run = self.lines(name) or [], name.rpartition("/")[0]
        if name.endswith(EPOCHS):
            return lines if self.end(run) is not None else []
        if not name.endswith(RECORD):
            return lines
        ended = bool(lines) and lines[-1].get("kind") == "end"
        # of probed runs, it is asked when the images are fitted: every epoch is kept
        every = 1 if self.lines(f"{run}/{EPOCHS}") else 20
        return [line for line in lines if ended and (line["kind"] != "epoch" or line["epoch"] % every == 0)]
