"""How do stored pictures become tensors of uint8? Decoded once, and kept on disk."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from esam.files import write_atomically

from .checkpoint import read_tensors

GREY_MODES = ("1", "L", "LA")
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # more than 8 bits: scaling them is the owner's choice
LOOKED_AT = 16  # pictures whose headers decide between grey and colour


@dataclass(frozen=True)
class Pictures:
    """Stored pictures that can be opened one at a time, here or in a worker process."""

    items: Any
    """Paths, arrays of pixels, or the rows of a table with one column of pictures that are not decoded."""
    name: str = "the pictures"
    """What an error message calls arrays and tables."""

    def __len__(self) -> int:
        """Give the number of pictures."""
        return len(self.items)

    @contextmanager
    def open(self, row: int) -> Iterator[Image.Image]:
        """Open one picture; whatever is wrong with it inside the block is told with where it lies."""
        try:
            item = self.items[row]
            if isinstance(item, np.ndarray):
                yield Image.fromarray(item)
                return
            if not isinstance(item, str):
                (cell,) = item.values()
                if cell is None or (cell["bytes"] is None and cell["path"] is None):
                    raise ValueError("the row holds no picture")
                item = cell["path"] if cell["bytes"] is None else io.BytesIO(cell["bytes"])
            with Image.open(item) as image:
                yield image
        except Exception as error:  # Pillow raises a dozen kinds for broken files, SyntaxError among them
            remedy = "replace the picture or take it out of the data set"
            raise ValueError(f"cannot read {self.where(row)}: {error}; {remedy}") from error

    def where(self, row: int) -> str:
        """Say where that picture lies, for an error message."""
        return str(self.items[row]) if isinstance(self.items, tuple) else f"row {row} of {self.name}"


def files_fingerprint(root: str | Path, paths: Iterable[str | Path]) -> str:
    """Give a text that changes whenever one of the files does: by names, lengths and times of change."""
    digest = hashlib.sha256()
    for path in paths:
        status = os.stat(path)
        digest.update(f"{os.path.relpath(path, root)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Decoder:
    """Decodes pictures of one data set to (height, width, channels) arrays of uint8.

    With ``fit``, a picture is resized by its shorter side and cropped at its centre; without, it must have the right
    size already.
    """

    channels: int
    height: int
    width: int
    fit: bool

    def __call__(self, pictures: Pictures, row: int) -> NDArray[np.uint8]:
        """Decode one picture; what is wrong with it is a ValueError that says where."""
        with pictures.open(row) as image:
            array = np.asarray(_prepared(image, self.channels, (self.width, self.height) if self.fit else None))
        if array.shape[:2] != (self.height, self.width):
            raise ValueError(
                f"{pictures.where(row)} is {array.shape[1]}x{array.shape[0]} while the first picture is "
                f"{self.width}x{self.height}; for pictures of differing sizes pass size=, such as size={self.height}, "
                "and all are resized and cropped to that square"
            )
        return array.reshape(self.height, self.width, self.channels)

    def decode_all(self, pictures: Pictures, rows: Tensor) -> Tensor:
        """Decode the pictures at these rows: (N, C, H, W), channels_last in memory as pictures decode."""
        pixels = np.empty((len(rows), self.height, self.width, self.channels), dtype=np.uint8)
        with ThreadPool() as pool:  # Pillow decodes without Python's lock
            for position, array in enumerate(pool.imap(partial(self, pictures), rows.tolist(), chunksize=16)):
                pixels[position] = array
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def decoder_for(pictures: Pictures, size: int | None) -> Decoder:
    """Choose channels and size for a data set by looking at a few of its pictures, evenly spread.

    Pictures are grey when all those looked at are; else all are decoded as RGB.
    """
    channels = 1
    for row in range(0, len(pictures), max(1, len(pictures) // LOOKED_AT)):
        with pictures.open(row) as image:
            channels = channels if image.mode in GREY_MODES else 3
    if size is not None:
        return Decoder(channels, size, size, fit=True)
    with pictures.open(0) as image:
        width, height = ImageOps.exif_transpose(image).size
    return Decoder(channels, height, width, fit=False)


def _prepared(image: Image.Image, channels: int, fit_to: tuple[int, int] | None) -> Image.Image:
    if image.mode in DEEP_MODES:
        raise ValueError(f"its pixels have more than 8 bits (mode {image.mode}); save the pictures with 8 bits")
    if channels == 1 and image.mode not in GREY_MODES:
        raise ValueError(f"it is coloured (mode {image.mode}) among grey pictures; save all in one mode")
    if fit_to is not None:
        image.draft(None, fit_to)  # lets a large JPEG be decoded at 1/2, 1/4 or 1/8, never below the wanted size
    upright = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    if fit_to is None or upright.size == fit_to:
        return upright
    return ImageOps.fit(upright, fit_to, method=Image.Resampling.BILINEAR)


FORMAT = 4  # part of every key: raise it when the stored bytes change their meaning

Decoded = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[str, ...]]
"""Training and test data, uint8 images (N, C, H, W), channels_last, with labels; and the classes."""


def cached(key: object, decode: Callable[[], Decoded]) -> Decoded:
    """Give the decoded data set of a key as it is kept under $ESAM_CACHE or ~/.cache/esam, or decode and keep it.

    The file appears whole or not at all. A damaged one is made anew, and a disk that refuses is only a warning.
    """
    root = Path(os.environ.get("ESAM_CACHE") or "~/.cache/esam").expanduser()
    path = root / "data" / f"{hashlib.sha256(repr((FORMAT, key)).encode()).hexdigest()[:32]}.pt"
    try:
        if path.exists():
            kept = read_tensors(path)
            return kept["train"], kept["test"], kept["classes"]
    except (ValueError, KeyError) as error:
        warnings.warn(f"the cache {path} is damaged ({error}) and is made anew", stacklevel=2)
    decoded = decode()
    buffer = io.BytesIO()
    torch.save(dict(zip(("train", "test", "classes"), decoded, strict=True)), buffer)
    try:
        write_atomically(path, buffer.getbuffer())
    except OSError as error:
        warnings.warn(
            f"cannot cache the decoded images in {path} ({error}), so the next run decodes them again; "
            "point ESAM_CACHE at a folder that can be written",
            stacklevel=2,
        )
    return decoded
