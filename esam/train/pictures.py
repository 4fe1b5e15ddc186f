"""How do stored pictures become tensors of uint8: decoded when a batch asks for them, or once and kept on disk?"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from esam.files import write_atomically

from .augment import inception_crop
from .draws import generator_for

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


@dataclass(frozen=True)
class StreamedPictures(Dataset[Any]):
    """Pictures and labels, ``labels[i]`` of ``pictures.open(rows[i])``, that are decoded when a batch asks for them."""

    pictures: Pictures
    rows: Tensor
    labels: Tensor
    decoder: Decoder | None = None
    crop_key: tuple[str | int, ...] | None = None
    """What random crops are drawn by, where they are taken of the whole picture."""
    workers = 2

    def __len__(self) -> int:
        """Give the number of pictures."""
        return len(self.labels)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        crop = None if self.crop_key is None else inception_crop(generator_for(*self.crop_key, position))
        assert self.decoder is not None, "a listing has none yet"
        pixels = self.decoder(self.pictures, int(self.rows[position]), crop)
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), self.labels[position]  # Pillow's memory is read-only

    @staticmethod
    def collate(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return one batch, channels_last in memory as pictures decode."""
        images = torch.stack([image.permute(1, 2, 0) for image, _ in rows])
        return images.permute(0, 3, 1, 2), torch.stack([label for _, label in rows])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width after decoding."""
        assert self.decoder is not None, "a listing has none yet"
        return self.decoder.channels, self.decoder.height, self.decoder.width

    @property
    def crops(self) -> bool:
        """Whether random crops are taken while decoding: of the whole picture, not of what resizing leaves of it."""
        return self.decoder is not None and self.decoder.fit

    def cropped(self, key: tuple[str | int, ...]) -> StreamedPictures:
        """Return the pictures with random crops, drawn by this key and the position."""
        return replace(self, crop_key=key)

    def select(self, chosen: Tensor) -> StreamedPictures:
        """Return the pictures at these positions, in this order."""
        return replace(self, rows=self.rows[chosen], labels=self.labels[chosen])

    def with_labels(self, labels: Tensor) -> StreamedPictures:
        """Return the pictures with other labels."""
        return replace(self, labels=labels)

    def in_memory(self) -> tuple[Tensor, Tensor]:
        """Decode every picture."""
        assert self.decoder is not None, "a listing has none yet"
        # (N, H, W, C) is how pictures decode and what channels_last means, so the images are never turned around.
        pixels = np.empty((len(self), self.decoder.height, self.decoder.width, self.decoder.channels), dtype=np.uint8)
        for position in range(len(self)):
            pixels[position] = self.decoder(self.pictures, int(self.rows[position]))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2), self.labels

    def fingerprint(self) -> str:
        """Return a text that changes whenever a picture does."""
        return f"{self.pictures.fingerprint()} {self.decoder}"


FORMAT = 1  # part of every key: raise it when the stored bytes change their meaning
CONTENTS = "contents.json"  # written last, so a folder that has it is complete


@dataclass(frozen=True)
class Decoded:
    """A whole data set in memory: uint8 images (N, C, H, W), channels_last, and labels."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]


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
        train, test = (
            (torch.from_numpy(arrays[f"{name}_images"]).permute(0, 3, 1, 2), torch.from_numpy(arrays[f"{name}_labels"]))
            for name in ("train", "test")
        )
        return Decoded(train, test, tuple(contents["classes"]))
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        warnings.warn(f"the cache {folder} is damaged ({error}) and is made anew", stacklevel=3)
        return None


def write_cache(folder: Path, decoded: Decoded) -> None:
    """Store a decoded data set; every file appears whole or not at all. A disk that refuses is only a warning."""
    arrays = {}
    for name, (images, labels) in (("train", decoded.train), ("test", decoded.test)):
        arrays[f"{name}_images"] = images.permute(0, 2, 3, 1).contiguous().numpy()
        arrays[f"{name}_labels"] = labels.numpy()
    contents = {
        "classes": decoded.classes,
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
