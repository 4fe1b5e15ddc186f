"""How does one stored picture become an array of uint8?"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Crop = Callable[[int, int], tuple[tuple[float, float, float, float], bool]]
"""(height, width) of a whole picture -> the box to take of it (top, left, height, width), and whether to mirror it."""
GREY_MODES = ("1", "L", "LA")
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # more than 8 bits: scaling them is the owner's choice
LOOKED_AT = 16  # pictures whose headers decide between grey and colour


class Pictures(Protocol):
    """Stored pictures that can be opened one at a time, here or in a worker process."""

    def __len__(self) -> int:
        """Give the number of pictures."""

    def open(self, row: int) -> Image.Image:
        """Open one picture."""

    def where(self, row: int) -> str:
        """Say where that picture lies, in words for an error message."""

    def fingerprint(self) -> str:
        """Give a text that changes whenever a picture does, without reading the pictures."""


@dataclass(frozen=True)
class FilePictures:
    """Pictures in files of their own."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        """Give the number of files."""
        return len(self.paths)

    def open(self, row: int) -> Image.Image:
        """Open one file; the pixels are read later."""
        return Image.open(self.paths[row])

    def where(self, row: int) -> str:
        """Give the file's path."""
        return self.paths[row]

    def fingerprint(self) -> str:
        """Fingerprint the files' names, lengths and times of change."""
        digest = hashlib.sha256()
        root = os.path.commonpath(self.paths)
        for path in self.paths:
            status = os.stat(path)
            digest.update(f"{os.path.relpath(path, root)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class TablePictures:
    """Pictures in a column of a Hugging Face data set, whose ``Image`` feature is set not to decode."""

    table: Any
    column: str
    name: str

    def __len__(self) -> int:
        """Give the number of rows."""
        return len(self.table)

    def open(self, row: int) -> Image.Image:
        """Open one row's picture, from the table's own bytes or from the file it points at."""
        cell = self.table[row][self.column]
        if cell is None or (cell["bytes"] is None and cell["path"] is None):
            raise ValueError("the row holds no picture")
        return Image.open(cell["path"] if cell["bytes"] is None else io.BytesIO(cell["bytes"]))

    def where(self, row: int) -> str:
        """Give the row, and the file's name where the table knows one."""
        cell = self.table[row][self.column]
        path = f" ({cell['path']})" if cell and cell["path"] else ""
        return f"row {row} of {self.name}, column {self.column!r}{path}"

    def fingerprint(self) -> str:
        """Give the table's own."""
        return str(self.table._fingerprint)


@dataclass(frozen=True)
class ArrayPictures:
    """Grey pictures that are arrays already."""

    arrays: NDArray[np.uint8]

    def __len__(self) -> int:
        """Give the number of pictures."""
        return len(self.arrays)

    def open(self, row: int) -> Image.Image:
        """Wrap one array."""
        return Image.fromarray(self.arrays[row])

    def where(self, row: int) -> str:
        """Give the picture's number."""
        return f"picture {row}"

    def fingerprint(self) -> str:
        """Fingerprint the pixels."""
        return hashlib.sha256(np.ascontiguousarray(self.arrays).data).hexdigest()


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

    @property
    def bytes_each(self) -> int:
        """Give the memory that one decoded picture takes."""
        return self.channels * self.height * self.width

    def __call__(self, pictures: Pictures, row: int, crop: Crop | None = None) -> NDArray[np.uint8]:
        """Decode one picture, or with ``fit`` a crop of it; what is wrong with it is a ValueError that says where."""
        array = _pixels(pictures, row, self.channels, (self.width, self.height) if self.fit else None, crop)
        if array.shape[:2] != (self.height, self.width):
            raise ValueError(
                f"{pictures.where(row)} is {array.shape[1]}x{array.shape[0]} while the first picture is "
                f"{self.width}x{self.height}; for pictures of differing sizes pass size=, such as size={self.height}, "
                "and all are resized and cropped to that square"
            )
        return array


def decoder_for(pictures: Pictures, size: int | None) -> Decoder:
    """Choose channels and size for a data set by looking at a few of its pictures, evenly spread.

    Pictures are grey when all those looked at are; else all are decoded as RGB.
    """
    step = max(1, len(pictures) // LOOKED_AT)
    channels = 1 if all(_is_grey(pictures, row) for row in range(0, len(pictures), step)) else 3
    if size is not None:
        return Decoder(channels, size, size, fit=True)
    height, width, _ = _pixels(pictures, 0, channels, None).shape
    return Decoder(channels, height, width, fit=False)


def _is_grey(pictures: Pictures, row: int) -> bool:
    try:
        with pictures.open(row) as image:
            return image.mode in GREY_MODES
    except Exception as error:
        raise _unreadable(pictures, row, error) from error


def _pixels(
    pictures: Pictures, row: int, channels: int, fit_to: tuple[int, int] | None, crop: Crop | None = None
) -> NDArray[np.uint8]:
    try:
        with pictures.open(row) as image:
            array = np.asarray(_prepared(image, channels, fit_to, crop), dtype=np.uint8)
    except Exception as error:  # Pillow raises a dozen kinds for broken files, SyntaxError among them
        raise _unreadable(pictures, row, error) from error
    return array.reshape(*array.shape[:2], channels)


def _prepared(
    image: Image.Image, channels: int, fit_to: tuple[int, int] | None, crop: Crop | None = None
) -> Image.Image:
    if image.mode in DEEP_MODES:
        raise ValueError(f"its pixels have more than 8 bits (mode {image.mode}); save the pictures with 8 bits")
    if channels == 1 and image.mode not in GREY_MODES:
        raise ValueError(f"it is coloured (mode {image.mode}) among grey pictures; save all in one mode")
    if fit_to is not None and crop is None:  # a small box needs every pixel
        image.draft(None, fit_to)  # lets a large JPEG be decoded at 1/2, 1/4 or 1/8, never below the wanted size
    upright = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    if fit_to is not None and crop is not None:
        (top, left, height, width), mirrored = crop(upright.height, upright.width)
        box = (left, top, min(left + width, upright.width), min(top + height, upright.height))
        taken = upright.resize(fit_to, Image.Resampling.BILINEAR, box=box)
        return ImageOps.mirror(taken) if mirrored else taken
    if fit_to is None or upright.size == fit_to:
        return upright
    return ImageOps.fit(upright, fit_to, method=Image.Resampling.BILINEAR)


def _unreadable(pictures: Pictures, row: int, error: Exception) -> ValueError:
    try:
        where = pictures.where(row)
    except Exception:  # the table itself cannot be read
        where = f"row {row}"
    return ValueError(f"cannot read {where}: {error}; replace the picture or take it out of the data set")
