"""What did a run measure, and how is that kept on disk?

A record is a JSON-lines file in the run's folder: one "run" line (what was asked, and where it ran), one "epoch" line
an epoch, one "end" line. JSON has no NaN or infinity: a number that is not finite is written as null and read as None.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from esam.files import with_disk_full_hint, write_atomically, write_through

FORMAT = 1
RECORD_NAME = "record.jsonl"

Line = dict[str, Any]

_NUMBER = (int, float, type(None))
_FIGURES = ("train_loss", "test_loss", "seconds", "forwards", "backwards")
_END_FIGURES = (*_FIGURES, "last", "best", "train_accuracy", "images_per_second", "sharpness", "peak_memory")
_TYPES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "run": {"format": int, "name": str, "method": str, "seed": int, "config": dict, "environment": dict},
    "epoch": {"epoch": int, **dict.fromkeys((*_FIGURES, "lr", "test_accuracy", "images"), _NUMBER)},
    "end": {"status": str, "test_accuracy": dict, **dict.fromkeys(_END_FIGURES, _NUMBER)},
}
"""What the lines hold; the best and the last accuracy are inside an end's ``test_accuracy``."""


@dataclass(frozen=True)
class RunRecord:
    """One run as its record tells it; `end` is None while the run goes on, or when it was killed."""

    path: Path
    run: Line
    epochs: tuple[Line, ...]
    end: Line | None

    @property
    def name(self) -> str:
        """The name that people read, such as "ESAM"."""
        return str(self.run["name"])

    @property
    def method(self) -> str:
        """The method's key, such as "esam"."""
        return str(self.run["method"])

    @property
    def seed(self) -> int:
        """The seed that the run drew everything from."""
        return int(self.run["seed"])

    @property
    def config(self) -> Line:
        """What the run was asked to do."""
        return dict(self.run["config"])

    @property
    def data(self) -> Line | None:
        """What the run was trained on, as ``data_facts`` tells it; None where the record does not say."""
        return self.run.get("data")

    @property
    def last_epoch(self) -> int:
        """The last epoch recorded, 0 before the first."""
        return int(self.epochs[-1]["epoch"]) if self.epochs else 0

    @property
    def finished(self) -> bool:
        """Whether the run came to its planned end."""
        return self.end is not None and self.end["status"] == "finished"

    @property
    def diverged(self) -> bool:
        """Whether the run ended because its loss was no finite number."""
        return self.end is not None and self.end["status"] == "diverged"


class RecordWriter:
    """A record that grows by whole lines, each on the disk before the call returns.

    Write the epoch's line first and the checkpoint after it: `resume` drops lines that the checkpoint does not know,
    but it cannot invent lines that the checkpoint is ahead of.
    """

    def __init__(self, path: Path, lines: Iterable[Mapping[str, Any]]) -> None:  # use create or resume
        self.path = path
        write_atomically(path, b"".join(map(encode, lines)))

    @classmethod
    def create(cls, path: Path, run: Mapping[str, Any]) -> RecordWriter:
        """Start a record from its first line: name, method, seed, config, environment, and whatever else is known."""
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(path, [{"kind": "run", "format": FORMAT, "started": started, **run}])

    @classmethod
    def resume(cls, path: Path, *, epoch: int) -> RecordWriter:
        """Continue the record after `epoch` (0: from the start); the rest goes."""
        record = read_record(path)
        if epoch > record.last_epoch:
            raise ValueError(
                f"{path} holds epochs up to {record.last_epoch}, so it cannot go on after epoch {epoch}: "
                "resume from an earlier checkpoint, or start the run again in another folder"
            )
        return cls(path, [record.run, *(line for line in record.epochs if line["epoch"] <= epoch)])

    def epoch(self, **values: Any) -> None:
        """Append the line of one epoch: epoch=1, lr=..., train_loss=..., and so on."""
        self._append({"kind": "epoch", **values})

    def end(self, **values: Any) -> None:
        """Append the last line: the run's results, with status="finished" unless told otherwise."""
        self._append({"kind": "end", "status": "finished", "test_accuracy": {}, **values})

    def _append(self, line: Line) -> None:
        size = self.path.stat().st_size
        try:
            write_through(self.path, os.O_WRONLY | os.O_APPEND, encode(line))
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise with_disk_full_hint(error, self.path) from error


def read_record(path: Path) -> RunRecord:
    """Read one record; a last line that was torn by a kill is left out."""
    return parse_record(path, path.read_bytes())


def parse_record(path: Path, data: bytes) -> RunRecord:
    """Return the record that these lines are; the path is for messages."""
    texts = data.rstrip().split(b"\n")
    lines: list[Line] = []
    for number, text in enumerate(texts, start=1):
        where = f"{path}, line {number}"
        try:
            line = json.loads(text, parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            if 1 < number == len(texts):
                break
            raise ValueError(f"{where}: no JSON ({error}); restore the file, or remove it") from error
        _check_line(line, where)
        _check_place(line, lines, where)
        lines.append(line)
    end = lines.pop() if lines[-1]["kind"] == "end" else None
    return RunRecord(path, lines[0], tuple(lines[1:]), end)


def read_records(folder: str | Path, *, broken: list[str] | None = None) -> list[RunRecord]:
    """Read every record in the folder and below it, sorted by name and seed.

    A record that cannot be read is refused; with a list ``broken``, what is wrong goes there and the others are read.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder that holds the runs")
    records = []
    for path in sorted(Path(folder).rglob(RECORD_NAME)):
        try:
            records.append(read_record(path))
        except ValueError as error:
            if broken is None:
                raise
            broken.append(str(error))
    return sorted(records, key=lambda record: (record.name, record.seed))


def encode(line: Mapping[str, Any]) -> bytes:
    """One line of JSON that any reader takes: ASCII, null for what is not finite."""
    return json.dumps(_clean(line), allow_nan=False).encode("ascii") + b"\n"


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, (list, tuple)) else value


def _finite(text: str) -> float | None:
    number = float(text)  # 1e999 is valid JSON, and infinite; NaN is not valid, and written by many
    return number if math.isfinite(number) else None


def _check_line(line: Any, where: str) -> None:
    if not isinstance(line, dict) or line.get("kind") not in _TYPES:
        raise ValueError(f'{where}: expected an object of kind "run", "epoch" or "end"; restore the file, or remove it')
    accuracies = line.get("test_accuracy") if line["kind"] == "end" else None
    values = {**line, **accuracies} if isinstance(accuracies, dict) else line
    for key, kind in _TYPES[line["kind"]].items():
        if not isinstance(values.get(key), kind):
            wanted = f"of type {kind.__name__}" if isinstance(kind, type) else "a number or null"
            raise ValueError(f'{where}: "{key}" must be {wanted}, got {values.get(key)!r}')
    if line["kind"] == "run" and line["format"] > FORMAT:
        raise ValueError(
            f"{where}: written by a newer version of esam (format {line['format']}, this one reads up to {FORMAT}): "
            "upgrade with pip install -U torch-esam"
        )


def _check_place(line: Line, before: list[Line], where: str) -> None:
    if (line["kind"] == "run") != (not before):
        raise ValueError(f'{where}: a record has one line of kind "run", and it is the first')
    if before and before[-1]["kind"] == "end":
        raise ValueError(f'{where}: a line after the "end" line')
    last = before[-1]["epoch"] if len(before) > 1 else 0
    if line["kind"] == "epoch" and line["epoch"] <= last:
        raise ValueError(f"{where}: epoch {line['epoch']} follows epoch {last}; epochs must rise")


def environment(device: str = "cpu") -> dict[str, str | int | None]:
    """What a measurement was taken with: versions, commit, hardware; never a path, a host name or a user name."""
    import torch  # here, so that reading records does without it

    import esam

    on_gpu = device.startswith("cuda") and torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "esam": esam.__version__,
        "commit": _commit(Path(__file__).resolve().parents[2]),
        "device": device,
        "hardware": torch.cuda.get_device_name(device) if on_gpu else _cpu_name(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _commit(checkout: Path) -> str | None:
    if not (checkout / ".git").exists():  # installed: a repository further up would be somebody else's
        return None
    command = "git --no-optional-locks describe --always --dirty --abbrev=40 --exclude=*"
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command.split(), cwd=checkout, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    return None


def _cpu_name() -> str:
    """Name the processor; with its family and model, for hypervisors call unlike ones alike."""
    with suppress(OSError, KeyError):
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
        about = dict(re.findall(r"^([\w ]+?)\s*: (.+)$", first, re.MULTILINE))
        return f"{about['model name']}, family {about['cpu family']} model {about['model']}"
    return platform.processor() or platform.machine()
