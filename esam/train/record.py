"""What did a run measure, and how is that kept on disk?

A record is a JSON-lines file in the run's folder: one "run" line (what was asked, and where it ran), one "epoch" line
an epoch, one "end" line. JSON has no NaN or infinity: a number that is not finite is written as null and read as None.

A pack holds many of them: JSON lines, one a record, compressed by xz; the same records are the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import lzma
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from esam.files import with_disk_full_hint, write_atomically, write_through

FORMAT = 1
RECORD_NAME = "record.jsonl"
PACK_SUFFIX = ".jsonl.xz"

Line = dict[str, Any]

_TYPES: dict[str, dict[str, type]] = {
    "run": {"format": int, "name": str, "method": str, "seed": int, "config": dict, "environment": dict},
    "epoch": {"epoch": int},
    "end": {"status": str, "test_accuracy": dict},
}
_NUMBERS = "lr train_loss train_accuracy test_loss train_seconds seconds images images_per_second forwards backwards"


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

    @property
    def data(self) -> Line | None:
        """What the run was trained on, as ``data_facts`` tells it; None where the record does not say."""
        facts = self.run.get("data")
        return dict(facts) if isinstance(facts, dict) else None


class RecordWriter:
    """A record that grows by whole lines, each on the disk before the call returns.

    Write the epoch's line first and the checkpoint after it: `resume` drops lines that the checkpoint does not know,
    but it cannot invent lines that the checkpoint is ahead of.
    """

    def __init__(self, path: Path) -> None:  # use create or resume
        record = read_record(path)
        self.path, self._lines = path, [record.run, *record.epochs]

    @classmethod
    def create(cls, path: str | Path, run: Mapping[str, Any]) -> RecordWriter:
        """Start a record at `path` from name, method, seed and config; id, environment and start time are filled in."""
        path = Path(path)
        if path.exists():
            raise ValueError(f"{path} already holds a record: use RecordWriter.resume, or choose another folder")
        first = {"kind": "run", "format": FORMAT, "id": config_id(run.get("config", {})), **run}
        first.setdefault("environment", environment())
        first.setdefault("started", datetime.now(timezone.utc).isoformat(timespec="seconds"))
        line = encode(first)
        _check_line(json.loads(line), f"{path}, line 1")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, line)
        return cls(path)

    @classmethod
    def resume(cls, path: str | Path, *, epoch: int) -> RecordWriter:
        """Continue the record after `epoch` (0: from the start); the rest goes."""
        record = read_record(path)
        if not 0 <= epoch <= record.last_epoch:
            raise ValueError(
                f"{record.path} holds epochs up to {record.last_epoch}, so it cannot go on after epoch {epoch}: "
                "resume from an earlier checkpoint, or start the run again in another folder"
            )
        kept = [line for line in record.epochs if line["epoch"] <= epoch]
        write_atomically(record.path, b"".join(encode(line) for line in [record.run, *kept]))
        return cls(record.path)

    def epoch(self, **values: Any) -> None:
        """Append the line of one epoch: epoch=1, lr=..., train_loss=..., and so on."""
        self._append({"kind": "epoch", **values})

    def end(self, **values: Any) -> None:
        """Append the last line: the run's results, with status="finished" unless told otherwise."""
        self._append({"kind": "end", "status": "finished", "test_accuracy": {}, **values})

    def _append(self, line: Line) -> None:
        data = encode(line)
        _check_line(json.loads(data), str(self.path))
        _check_place(line, self._lines, str(self.path))
        size = self.path.stat().st_size
        try:
            write_through(self.path, os.O_WRONLY | os.O_APPEND, data)
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise with_disk_full_hint(error, self.path) from error
        self._lines.append(line)


def read_record(path: str | Path) -> RunRecord:
    """Read one record; a last line that was torn by a kill is left out."""
    path = Path(path)
    return _record_of(path, path.read_bytes())


def _record_of(path: Path, data: bytes) -> RunRecord:
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
    return RunRecord(path=path, run=lines[0], epochs=tuple(lines[1:]), end=end)


def read_records(folder: str | Path, *, broken: list[str] | None = None) -> list[RunRecord]:
    """Read every record in the folder and below it, or in a pack, sorted by name and seed.

    A record that cannot be read is refused; with a list ``broken``, what is wrong goes there and the others are read.
    """
    folder = Path(folder)
    if folder.name.endswith(PACK_SUFFIX) and folder.is_file():
        packed = {folder / name: lines for name, lines in read_pack(folder).items()}
        texts = [(path, b"".join(map(encode, lines))) for path, lines in packed.items() if path.name == RECORD_NAME]
    elif folder.is_dir():
        texts = [(path, path.read_bytes()) for path in folder.rglob(RECORD_NAME)]
    else:
        raise ValueError(
            f"{folder} is not a folder: give the folder that holds the runs, or a pack (NAME{PACK_SUFFIX})"
        )
    records = []
    for path, data in sorted(texts):
        try:
            records.append(_record_of(path, data))
        except ValueError as error:
            if broken is None:
                raise
            broken.append(str(error))
    return sorted(records, key=lambda record: (record.name, record.seed))


def write_pack(path: str | Path, files: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the lines of files, by their names within the pack, as one pack."""
    path = Path(path)
    if not path.name.endswith(PACK_SUFFIX):
        raise ValueError(f"a pack's name ends with {PACK_SUFFIX}, got {path.name}")
    texts = (
        json.dumps({"name": name, "lines": list(files[name])}, allow_nan=False, separators=(",", ":"))
        for name in sorted(files)
    )
    write_atomically(path, lzma.compress("".join(f"{text}\n" for text in texts).encode("ascii"), preset=9))


def read_pack(path: str | Path) -> dict[str, list[Line]]:
    """Return the lines of the files of a pack, by name."""
    try:
        texts = lzma.decompress(Path(path).read_bytes()).splitlines()
        packed = [json.loads(text) for text in texts]
        return {str(file["name"]): list(file["lines"]) for file in packed}
    except (lzma.LZMAError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no pack ({error!r}); restore the file") from error


def config_id(config: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that name a config: the same settings give the same id, in whatever order."""
    text = json.dumps(_clean(config), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
    number = line.get("format")
    if line["kind"] == "run" and isinstance(number, int) and number > FORMAT:
        raise ValueError(
            f"{where}: written by a newer version of esam (format {number}, this one reads up to {FORMAT}): "
            "upgrade with pip install -U torch-esam"
        )
    for key, kind in _TYPES[line["kind"]].items():
        if not isinstance(line.get(key), kind):
            raise ValueError(f'{where}: "{key}" must be of type {kind.__name__}, got {line.get(key)!r}')
    numbers = {key: line.get(key) for key in [*_NUMBERS.split(), "sharpness", "peak_memory", "test_accuracy"]}
    if line["kind"] == "end":
        numbers |= {"test_accuracy": None, **{key: line["test_accuracy"].get(key) for key in ("last", "best")}}
    for key, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f'{where}: "{key}" must be a number or null, got {value!r}')


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

    on_gpu = device.startswith("cuda") and torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "esam": _esam_version(),
        "commit": _commit(Path(__file__).resolve().parents[2]),
        "device": device,
        "hardware": torch.cuda.get_device_name(device) if on_gpu else _cpu_name(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _esam_version() -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("torch-esam")
    return None


def _commit(checkout: Path) -> str | None:
    if not (checkout / ".git").exists():  # installed: a repository further up would be somebody else's
        return None
    command = "git --no-optional-locks describe --always --dirty --abbrev=40 --exclude=*"
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command.split(), cwd=checkout, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    return None


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
