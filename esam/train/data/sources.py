"""Which pictures does a source hold, before any is decoded? Digits and class folders; ``table.py`` has the third."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from esam.extras import require
from esam.train.data.draws import HELD_OUT_SHARE, held_out
from esam.train.data.pictures import ArrayPictures, FilePictures, Pictures
from esam.train.data.splits import Listing
from esam.train.names import did_you_mean, last_part

KNOWN = ("digits", "uoft-cs/cifar10", "uoft-cs/cifar100")
LOCAL_COPIES = "ESAM_DATA"  # the environment variable that names a folder of local copies
TEST_NAMES = ("test", "validation", "valid", "val")  # of folders and of splits; the first that is there is taken
LAYOUT = "train/<class>/<picture> with test/ or val/ beside train/, or <class>/<picture>, which is divided for you"
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
BRIGHTEST_DIGIT = 16  # scikit-learn's own scale is 0..16


@dataclass(frozen=True)
class Catalogue:
    """Training and test pictures, listed, not decoded; ``note`` says in words where they come from."""

    train: Listing
    test: Listing
    classes: tuple[str, ...]
    note: str


class Source(Protocol):
    """A place that data can come from."""

    def identity(self) -> str:
        """Give a text that changes whenever the content does; much cheaper than reading the content."""

    def catalogue(self) -> Catalogue:
        """List the pictures."""


def whole_listing(pictures: Pictures, labels: Tensor) -> Listing:
    """List all pictures in their stored order."""
    return Listing(pictures, torch.arange(len(pictures)), labels.long())


def divided(everything: Listing) -> tuple[Listing, Listing, str]:
    """Divide a listing that has no test split into training and test; the note tells the reader so."""
    kept, held = held_out(everything.labels)
    note = f"test images are {HELD_OUT_SHARE:.0%} of the training images, held out by a fixed, stratified draw"
    return everything.select(kept), everything.select(held), note


def files_identity(folder: Path, files: Iterable[Path]) -> str:
    """Fingerprint files by name, length and time of change, without reading them."""
    digest = hashlib.sha256(str(folder.resolve()).encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.relative_to(folder)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def unknown_data(asked: str, reason: str) -> ValueError:
    """Make the error for a data set that cannot be had; it names the nearest known one and every way to give one."""
    copies = os.environ.get(LOCAL_COPIES)
    held = sorted(os.listdir(copies)) if copies and Path(copies).is_dir() else []
    known = [*KNOWN, *(name for name in held if name not in map(last_part, KNOWN))]
    return ValueError(
        f"cannot load the data set {asked!r}: {reason}.{did_you_mean(asked, known)} Known names: {', '.join(known)}. "
        f"Or give another name of the Hugging Face hub, or the path of a folder of Parquet files or of pictures as "
        f"{LAYOUT}. Without a network, put a copy of the set into a folder named like the last part of its name and "
        f"set {LOCAL_COPIES} to the folder around it{f' (now {copies})' if copies else ''}"
    )


def local_copy(name: str) -> Path | None:
    """Give the folder in $ESAM_DATA that is named like the last part of a hub name, if there is one."""
    copies = os.environ.get(LOCAL_COPIES)
    folder = Path(copies).expanduser() / last_part(name) if copies else None
    return folder if folder is not None and folder.is_dir() else None


class Digits:
    """scikit-learn's 1,797 embedded digits: 8x8, grey, ten classes; needs no network."""

    def identity(self) -> str:
        """Give a constant: the digits ship with scikit-learn and do not change."""
        return "scikit-learn digits"

    def catalogue(self) -> Catalogue:
        """List the digits, a fifth of them held out as a test set."""
        require("sklearn", purpose="the embedded data set digits")
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / BRIGHTEST_DIGIT)).astype(np.uint8)
        train, test, note = divided(whole_listing(ArrayPictures(images), torch.from_numpy(bunch.target)))
        return Catalogue(train, test, tuple(str(name) for name in bunch.target_names), note)


class ClassFolders:
    """Pictures sorted into one folder per class, under ``train`` and ``test`` or ``val``, or without a division.

    Listed here rather than by the imagefolder builder of ``datasets``, which takes the innermost folder for the class
    and a class 'train station' for the training split, drops class folders that are links, and is far slower.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def identity(self) -> str:
        """Fingerprint the pictures' names, lengths and times."""
        files = [file for by_class in self._splits.values() for pictures in by_class.values() for file in pictures]
        return files_identity(self._root, files)

    def catalogue(self) -> Catalogue:
        """List the pictures; classes are the training folders' names in alphabetical order."""
        (_, train_files), *tests = self._splits.items()
        classes = tuple(train_files)
        train = _listed(train_files, classes)
        if not tests:
            train, test, note = divided(train)
            return Catalogue(train, test, classes, note)
        ((test_name, test_files),) = tests
        if strangers := sorted(set(test_files) - set(classes)):
            raise ValueError(
                f"{self._root / test_name} has classes that {self._root / 'train'} lacks: {', '.join(strangers)}; "
                "both need the same class folders"
            )
        note = f"test images are those of the folder {test_name!r}"
        return Catalogue(train, _listed(test_files, classes), classes, note)

    @cached_property
    def _splits(self) -> dict[str, dict[str, list[Path]]]:
        """Give {split: {class: files}}: training first, then the test split if there is one."""
        found = _subfolders(self._root)
        if "train" not in found:
            return {"train": _pictures_by_class(self._root)}
        tests = [name for name in TEST_NAMES if name in found]
        return {name: _pictures_by_class(self._root / name) for name in ["train", *tests[:1]]}


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _pictures_by_class(folder: Path) -> dict[str, list[Path]]:
    """Give {class: files}, both sorted; a class may have folders of its own inside."""
    by_class = {name: _pictures_below(folder / name) for name in _subfolders(folder)}
    empty = [name for name, files in by_class.items() if not files]
    if len(empty) == len(by_class):
        raise ValueError(f"{folder} holds no class folders of pictures; the layout is {LAYOUT}")
    if empty:
        raise ValueError(f"no pictures ({', '.join(ENDINGS)}) in {folder / empty[0]}; fill or remove that folder")
    return by_class


def _pictures_below(folder: Path) -> list[Path]:
    """Give the pictures in a folder and in those inside it; a link that leads back to where we were is not followed."""
    files: list[Path] = []
    seen = set(folder.resolve().parents)
    for place, inside, names in os.walk(folder, followlinks=True):
        if (here := Path(place).resolve()) in seen:
            inside.clear()
            continue
        seen.add(here)
        inside.sort()  # the same one of two links to one folder on every machine
        files += [Path(place, name) for name in names if name.lower().endswith(ENDINGS) and not name.startswith(".")]
    return sorted(files)


def _listed(files: dict[str, list[Path]], classes: tuple[str, ...]) -> Listing:
    paths = tuple(str(file) for name in files for file in files[name])
    labels = torch.tensor([classes.index(name) for name in files for _ in files[name]])
    return whole_listing(FilePictures(paths), labels)
