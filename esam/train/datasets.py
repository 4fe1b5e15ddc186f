"""How does a name become data? Digits, a folder of pictures, Parquet files, the hub, or a function of the user's."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from esam.extras import require

from .batches import Normalise
from .config import Config, did_you_mean, is_factory, last_part
from .pictures import Decoded, Pictures, cached, decoder_for, files_fingerprint
from .record import RECORD_NAME
from .samples import held_out
from .task import Task, as_task, called, find_factory, part_of

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
COUNTED = 1000  # images counted at a time for mean and std, to keep the temporaries small
KNOWN = ("digits", "uoft-cs/cifar10", "uoft-cs/cifar100")
LOCAL_COPIES = "ESAM_DATA"  # the environment variable that names a folder of local copies
TRAIN_NAMES = ("train", "training")  # of folders, in upper or lower case
TEST_NAMES = ("test", "testing", "validation", "valid", "val")  # of folders and of splits; the first of them is taken
LAYOUT = "train/<class>/<picture> with test/ or val/ beside train/, or <class>/<picture>, which is divided for you"
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
BRIGHTEST_DIGIT = 16  # scikit-learn's own scale is 0..16

OF_PICTURES = ("augment", "size", "label_column", "image_column")
"""What a run on data from a function of the user's own does not set: the function does it."""


def load_data(config: Config) -> Task:
    """Load the configured data: ``digits``, pictures from the hub or a folder, or what a user's own function returns.

    Pictures are decoded once and kept under $ESAM_CACHE; they are normalised by the mean and deviation of the training
    images. What does not fit into memory is refused: a Dataset of your own is read batch by batch.
    """
    if is_factory(config.data):
        for name in OF_PICTURES:
            if getattr(config, name) != getattr(Config, name):
                raise ValueError(
                    f"{name} is for pictures, and {config.data} is a function of your own: do it there, and leave it "
                    "out"
                )
        whole = as_task(config.data, called(config.data, find_factory(config.data)))
        task: Task = called(config.data, part_of, whole, config)
        return task
    identity, list_pictures = _find_source(config)
    train, test, classes = cached((identity, config.size), lambda: _decoded(list_pictures, config.size))
    task = part_of(Task(train, test, classes=classes), config)
    return replace(task, transform=Normalise(*channel_statistics(task.train[0])))


class Listing(NamedTuple):
    """Pictures with their labels, found but not decoded; ``test`` is None where there is no test split."""

    train: tuple[Pictures, Tensor]
    test: tuple[Pictures, Tensor] | None
    classes: tuple[str, ...]


Source = tuple[str, Callable[[], Listing]]
"""A text that changes whenever the data do, and what lists them."""


def _find_source(config: Config) -> Source:
    """Look for data: ``digits``; a folder of that path; one in $ESAM_DATA named like the last part; on the hub."""
    path = Path(config.data).expanduser()
    folder = path if path.is_dir() else _local_copy(config.data)
    if config.data != "digits":
        if folder is None and not HUB_NAME.fullmatch(config.data):
            raise _unknown_data(config.data, "there is no such folder, and a name on the hub reads owner/name")
        if folder is None or any(folder.glob("*.parquet")) or any(folder.glob("*/*.parquet")):
            return _table(folder or config.data, config)
    for name in ("image_column", "label_column"):
        if (column := getattr(config, name)) is not None:
            raise ValueError(f"{config.data} has no columns to choose from, got {name}={column!r}; leave it out")
    if config.data == "digits":
        return "scikit-learn digits", _digits  # which ship with it and do not change
    assert folder is not None, "a name without a folder is one on the hub"
    listing = _class_folders(folder)
    prints = [
        files_fingerprint(os.path.commonpath(pictures.items), pictures.items)
        for pictures, _ in filter(None, (listing.train, listing.test))
    ]
    return f"{prints} {listing.classes}", lambda: listing


def _decoded(list_pictures: Callable[[], Listing], size: int | None) -> Decoded:
    """Return training and test pictures with their labels, and the classes."""
    listing = list_pictures()
    decoder = decoder_for(listing.train[0], size)
    if listing.test is None:  # a fixed, stratified draw
        train, test = ((*listing.train, rows) for rows in held_out(listing.train[1]))
    else:
        train, test = ((*part, torch.arange(len(part[1]))) for part in (listing.train, listing.test))
    count = len(train[2]) + len(test[2])
    remedy = "size, or give a Dataset of your own (package.module:function), which is read batch by batch"
    needed = 2 * count * decoder.channels * decoder.height * decoder.width
    check_memory(needed, f"decoding and caching {count} pictures", remedy)
    first, second = ((decoder.decode_all(p, rows), labels[rows].long()) for p, labels, rows in (train, test))
    return first, second, listing.classes


def check_memory(needed: int, what: str, remedy: str) -> None:
    """Refuse what takes more memory than there is, before it is tried."""
    if needed > (there := available_memory()):
        raise ValueError(f"{what} takes {needed / 1e9:,.1f} GB and there are {there / 1e9:,.1f} GB; lower {remedy}")


def available_memory() -> int:
    """Return how many bytes this process can still take, as far as the system says."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return sys.maxsize


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give the mean and standard deviation of each channel of uint8 images, in units of 0..1.

    Counts the 256 values first, so the result is exact whatever the order or number of images; of several gigabytes,
    one is counted. A channel that never varies gets a deviation of 1, to be divided by harmlessly.
    """
    images = images[:: max(1, images.nbytes // 2**30)]
    counts = torch.zeros(images.shape[1], 256, dtype=torch.float64)
    for part in torch.split(images, COUNTED):
        counts += torch.stack([channel.reshape(-1).bincount(minlength=256) for channel in part.unbind(1)])
    share, values = counts / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255
    mean = (share * values).sum(1)
    deviation = (share * (values - mean[:, None]) ** 2).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(value or 1.0 for value in deviation.tolist())


def _unknown_data(asked: str, reason: str) -> ValueError:
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


def _local_copy(name: str) -> Path | None:
    """Give the folder in $ESAM_DATA that is named like the last part of a hub name, if there is one."""
    copies = os.environ.get(LOCAL_COPIES)
    folder = Path(copies).expanduser() / last_part(name) if copies else None
    return folder if folder is not None and folder.is_dir() else None


def _digits() -> Listing:
    """List scikit-learn's 1,797 embedded digits: 8x8, grey, ten classes; needs no network."""
    require("sklearn", purpose="the embedded data set digits")
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / BRIGHTEST_DIGIT)).astype(np.uint8)
    return Listing((Pictures(images), torch.from_numpy(bunch.target)), None, tuple(map(str, bunch.target_names)))


def _class_folders(root: Path) -> Listing:
    """List pictures sorted into one folder per class, under ``train`` and ``test`` or ``val``, or without a division.

    Classes are the training folders' names in alphabetical order. Listed here rather than by the imagefolder builder of
    ``datasets``, which takes the innermost folder for the class and a class 'train station' for the training split,
    drops class folders that are links, and is far slower.
    """
    folders = {each.name.lower(): each for each in sorted(root.glob("[!.]*")) if each.is_dir()}
    trains, tests = ([folders.pop(n) for n in names if n in folders] for names in (TRAIN_NAMES, TEST_NAMES))
    if bool(trains) != bool(tests):
        for each in tests or folders.values():
            if any(file.suffix.lower() in ENDINGS for file in each.glob("*/*")):
                missing = "test" if trains else "train"
                raise ValueError(
                    f"{each} holds class folders, and there is no {missing} beside it; the layout is {LAYOUT}"
                )
    train = _pictures_by_class(trains[0] if trains else root)
    test = _pictures_by_class(tests[0]) if trains and tests else None
    if strangers := sorted(set(test or ()) - set(train)):
        raise ValueError(
            f"{tests[0]} has classes that {trains[0]} lacks: {', '.join(strangers)}; both need the same class folders"
        )
    classes = tuple(train)
    return Listing(_labelled(train, classes), None if test is None else _labelled(test, classes), classes)


def _pictures_by_class(folder: Path) -> dict[str, list[str]]:
    """Give {class: files}, both sorted; a class may have folders of its own inside, which links are not followed to."""
    by_class = {
        each.name: sorted(
            file
            for file in each.rglob("*")
            if file.suffix.lower() in ENDINGS and not file.name.startswith(".") and file.is_file()
        )
        for each in sorted(folder.iterdir())
        if each.is_dir() and not each.name.startswith(".")
    }
    empty = [name for name, files in by_class.items() if not files]
    if len(empty) == len(by_class):
        raise ValueError(f"{folder} holds no class folders of pictures; the layout is {LAYOUT}")
    if empty and any((folder / empty[0]).rglob(RECORD_NAME)):
        raise ValueError(f"{folder / empty[0]} holds runs of esam and no pictures; move it out of the data folder")
    if empty:
        raise ValueError(f"no pictures ({', '.join(ENDINGS)}) in {folder / empty[0]}; fill or remove that folder")
    return {name: list(map(str, files)) for name, files in by_class.items()}


def _labelled(files: dict[str, list[str]], classes: tuple[str, ...]) -> tuple[Pictures, Tensor]:
    labels = [classes.index(name) for name in files for _ in files[name]]
    return Pictures(tuple(file for name in files for file in files[name])), torch.tensor(labels)


def _table(location: str | Path, config: Config) -> Source:
    """Find a data set that the ``datasets`` package reads: by name on the hub, or in a folder of Parquet files.

    Known by the local files, or by the revision that the hub gives.
    """
    columns = f"{config.image_column}/{config.label_column}"
    if isinstance(location, Path):
        files = sorted(file for file in location.rglob("*") if file.is_file())
        identity = f"{location.resolve()} {files_fingerprint(location, files)}/{columns}"
        return identity, lambda: table_listing(location, _splits(location), config)
    splits = _splits(location)
    prints = "/".join(f"{name} {table._fingerprint}" for name, table in sorted(splits.items()))
    identity = f"{location} {hashlib.sha256(prints.encode()).hexdigest()}/{columns}"
    return identity, lambda: table_listing(location, splits, config)


def _splits(location: str | Path) -> dict[str, Any]:
    require("datasets", purpose=f"reading {location}")
    import datasets  # type: ignore[import-untyped]

    try:
        return dict(datasets.load_dataset(str(location)))
    except Exception as error:  # datasets raises a dozen kinds; its own words go into ours
        if isinstance(location, Path):
            raise ValueError(f"cannot read the Parquet files in {location}: {error}") from error
        raise _unknown_data(location, str(error)) from error


def table_listing(location: str | Path, splits: dict[str, Any], config: Config) -> Listing:
    """List the pictures of the training and test splits.

    Columns are found by their feature type; among several ``ClassLabel`` columns the one with most classes is taken.
    """
    if "train" not in splits:
        raise ValueError(f"{location} has no split 'train', only {', '.join(splits)}")
    features = splits["train"].features
    image = _column(features, "Image", "image_column", config.image_column)
    label = _column(features, "ClassLabel", "label_column", config.label_column)
    listed: dict[str, tuple[Pictures, Tensor]] = {}
    for name in ("train", *TEST_NAMES):
        if name in splits:
            from datasets import Image

            pictures = splits[name].select_columns([image]).cast_column(image, Image(decode=False))
            labels = torch.tensor([-1 if each is None else each for each in splits[name][label][:]])
            # On the hub a split 'test' may come without its labels (-1 throughout), as ImageNet's does.
            if len(labels) and bool((labels >= 0).all()):
                listed[name] = Pictures(pictures, f"{location}/{name}, column {image!r}"), labels
    if "train" not in listed:
        raise ValueError(f"the training split of {location} is empty or has rows without a label; remove them")
    test = next((listed[name] for name in TEST_NAMES if name in listed), None)
    return Listing(listed["train"], test, tuple(features[label].names))


def _column(features: Any, kind: str, argument: str, wanted: str | None) -> str:
    """Return the wanted column of a feature type, or the first: of labels the one with most classes."""
    fitting = [name for name, feature in features.items() if type(feature).__name__ == kind]
    candidates: list[str] = sorted(fitting, key=lambda name: -getattr(features[name], "num_classes", 0))
    if not candidates:
        raise ValueError(
            f"no column has the feature type {kind}; the columns are {', '.join(map(str, features))}. "
            f"Give one that type with datasets' cast_column and save the set as Parquet"
        )
    if wanted is not None and wanted not in candidates:
        right = ", ".join(map(repr, candidates))
        raise ValueError(f"{argument} must be one of {right}, got {wanted!r}.{did_you_mean(wanted, candidates)}")
    return wanted or candidates[0]
