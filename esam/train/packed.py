"""How are many small records kept in one file? As JSON lines, one a record, compressed by xz.

A pack is written in one move and is the same bytes for the same records, whatever order they come in.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from esam.files import write_atomically

SUFFIX = ".jsonl.xz"

Lines = Sequence[Mapping[str, Any]]
"""The lines of one JSON-lines file."""


def is_pack(path: str | Path) -> bool:
    """Whether a path names a pack."""
    return str(path).endswith(SUFFIX)


def write_pack(path: str | Path, files: Mapping[str, Lines]) -> None:
    """Write files, by their names within the pack, as one pack."""
    path = Path(path)
    if not is_pack(path):
        raise ValueError(f"a pack's name ends with {SUFFIX}, got {path.name}")
    texts = (
        json.dumps({"name": name, "lines": list(files[name])}, allow_nan=False, separators=(",", ":"))
        for name in sorted(files)
    )
    packed = lzma.compress("".join(f"{text}\n" for text in texts).encode("ascii"), preset=9)
    write_atomically(path, packed)


def read_pack(path: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Return the files of a pack, by name."""
    return dict(_files(Path(path)))


def _files(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    try:
        texts = lzma.decompress(path.read_bytes()).splitlines()
    except lzma.LZMAError as error:
        raise ValueError(f"{path} is no pack ({error}); restore the file") from error
    for number, text in enumerate(texts, start=1):
        try:
            found = json.loads(text)
            yield str(found["name"]), list(found["lines"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: no packed file ({error!r}); restore the file") from error
