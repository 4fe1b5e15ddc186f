"""How are decoded images kept on disk, and how is a damaged copy noticed?"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esam.files import write_atomically
from esam.train.data.splits import Split

FORMAT = 1  # part of every key: raise it when the stored bytes change their meaning
CONTENTS = "contents.json"  # written last, so a folder that has it is complete


@dataclass(frozen=True)
class Decoded:
    """A whole data set in memory."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    note: str


def cache_folder(*key: object) -> Path:
    """Give the folder for a key, under $ESAM_CACHE or ~/.cache/esam."""
    root = Path(os.environ.get("ESAM_CACHE") or "~/.cache/esam").expanduser()
    return root / "data" / hashlib.sha256(repr((FORMAT, *key)).encode()).hexdigest()[:32]


def read_cache(folder: Path, *, memory_limit: int) -> Decoded | None:
    """Read a decoded data set; None when there is none, or it exceeds the limit, or is damaged (with a warning)."""
    if not (folder / CONTENTS).exists():
        return None
    try:
        contents = json.loads((folder / CONTENTS).read_text())
        if contents["bytes"] > memory_limit:
            return None
        arrays = {name: _read_array(folder / f"{name}.npy", check) for name, check in contents["checks"].items()}
        train, test = (_split(arrays[f"{name}_images"], arrays[f"{name}_labels"]) for name in ("train", "test"))
        return Decoded(train, test, tuple(contents["classes"]), contents["note"])
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        warnings.warn(f"the cache {folder} is damaged ({error}) and is made anew", stacklevel=3)
        return None


def write_cache(folder: Path, decoded: Decoded) -> None:
    """Store a decoded data set; every file appears whole or not at all. A disk that refuses is only a warning."""
    arrays = {}
    for name, split in (("train", decoded.train), ("test", decoded.test)):
        arrays[f"{name}_images"] = split.images.permute(0, 2, 3, 1).contiguous().numpy()
        arrays[f"{name}_labels"] = split.labels.numpy()
    contents = {
        "classes": decoded.classes,
        "note": decoded.note,
        "bytes": sum(array.nbytes for array in arrays.values()),
        "checks": {name: _checksum(array) for name, array in arrays.items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            file = io.BytesIO()
            np.save(file, array, allow_pickle=False)
            write_atomically(folder / f"{name}.npy", file.getbuffer())
        write_atomically(folder / CONTENTS, json.dumps(contents).encode())
    except OSError as error:
        warnings.warn(
            f"cannot cache the decoded images in {folder} ({error}), so the next run decodes them again; "
            "point ESAM_CACHE at a folder that can be written",
            stacklevel=3,
        )


def _read_array(path: Path, check: int) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, allow_pickle=False)
    if _checksum(array) != check:
        raise ValueError(f"{path.name} fails its checksum")
    return array


def _checksum(array: NDArray[Any]) -> int:
    """Give the CRC-32 of an array's type, shape and bytes."""
    return zlib.crc32(array.data.cast("B"), zlib.crc32(repr((array.dtype.str, array.shape)).encode()))


def _split(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Split:
    return Split(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels))
