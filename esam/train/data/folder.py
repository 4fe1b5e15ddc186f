"""Which pictures does a folder of class folders hold?"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import torch

from esam.train.data.catalogue import Catalogue, divided, files_identity, whole_listing
from esam.train.data.names import LAYOUT
from esam.train.data.pictures import FilePictures
from esam.train.data.splits import Listing

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TEST_FOLDERS = ("test", "val", "validation", "valid")


class ClassFolders:
    """Pictures sorted into one folder per class, under ``train`` and ``test`` or ``val``, or without a division."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def identity(self) -> str:
        """Fingerprint the pictures' names, lengths and times."""
        files = [file for pictures in self._splits.values() for names in pictures.values() for file in names]
        return files_identity(self._root, files)

    def catalogue(self) -> Catalogue:
        """List the pictures; classes are the training folders' names in alphabetical order."""
        if len(self._splits) == 1:
            everything, classes = self._splits["train"], tuple(self._splits["train"])
            train, test, note = divided(_listed(everything, classes))
            return Catalogue(train, test, classes, note)
        (train_name, train_files), (test_name, test_files) = self._splits.items()
        classes = tuple(train_files)
        strangers = sorted(set(test_files) - set(classes))
        if strangers:
            raise ValueError(
                f"{self._root / test_name} has classes that {self._root / train_name} lacks: {', '.join(strangers)}; "
                "both need the same class folders"
            )
        note = f"test images are those of the folder {test_name!r}"
        return Catalogue(_listed(train_files, classes), _listed(test_files, classes), classes, note)

    @cached_property
    def _splits(self) -> dict[str, dict[str, list[Path]]]:
        """Give {split: {class: files}}: training first, then the test split if there is one."""
        found = _subfolders(self._root)
        if "train" not in found:
            return {"train": _pictures_by_class(self._root)}
        tests = [name for name in TEST_FOLDERS if name in found]
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
    return sorted(
        Path(place, name)
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if name.lower().endswith(ENDINGS) and not name.startswith(".")
    )


def _listed(files: dict[str, list[Path]], classes: tuple[str, ...]) -> Listing:
    paths = tuple(str(file) for name in files for file in files[name])
    labels = torch.tensor([classes.index(name) for name in files for _ in files[name]])
    return whole_listing(FilePictures(paths), labels)
