"""How does a name become training and test images?"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from esam.train.data.cache import Decoded, cache_folder, read_cache, write_cache
from esam.train.data.draws import balanced_subset, check_share, flip_labels, held_out
from esam.train.data.pictures import decoder_for
from esam.train.data.sources import ClassFolders, Digits, Source, local_copy, unknown_data
from esam.train.data.splits import Data, Split, StreamedSplit
from esam.train.data.table import Table

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
MEMORY_LIMIT = 2**30  # bytes of decoded images; CIFAR takes 184 MB, ImageNet at 224 pixels 200 GB
COUNTED = 1000  # images counted at a time for mean and std, to keep the temporaries small
SAMPLED = 512  # streamed images that stand for all when mean and std are computed


def load_data(
    source: str | os.PathLike[str],
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    size: int | None = None,
    train_size: int | None = None,
    label_noise: float = 0.0,
    validation: bool = False,
    seed: int = 0,
    memory_limit: int = MEMORY_LIMIT,
) -> Data:
    """Load a data set by its name or folder.

    ``source`` is ``digits``, a name on the Hugging Face hub such as ``uoft-cs/cifar10`` (a copy in $ESAM_DATA is
    preferred), a folder of Parquet files, or a folder of class folders of pictures. ``size`` resizes and crops every
    image to that square. ``train_size`` takes a class-balanced part of the training images, and ``label_noise`` makes
    that share of their labels wrong; both follow ``seed``, and neither touches the test images. ``validation`` puts a
    fifth of the training images, always the same one, in the place of the test images: for tuning.

    A set within ``memory_limit`` bytes is decoded once and kept under $ESAM_CACHE; a larger one is streamed.
    """
    check_share(label_noise)
    if size is not None and size < 1:
        raise ValueError(f"size must be 1 or more pixels, got {size}")
    origin, place = _find_source(source, image_column=image_column, label_column=label_column)
    train, test, classes, notes = _train_and_test(origin, size, memory_limit)
    if validation:
        kept, out = held_out(train.labels)
        train, test = train.select(kept), train.select(out)
        notes.append("a fifth of the training images in the place of the test images")
    if train_size is not None:
        train = train.select(balanced_subset(train.labels, train_size, seed=seed))
        notes.append(f"a class-balanced part of the training images (seed {seed})")
    wrong: Tensor | None = None
    if label_noise > 0:
        labels, wrong = flip_labels(train.labels, label_noise, classes=len(classes), seed=seed)
        train = replace(train, labels=labels)
        notes.append(f"{int(wrong.sum())} training labels made wrong (seed {seed})")
    mean, std = channel_statistics(_images_for_statistics(train))
    channels, height, width = train.shape
    counts = f"{len(train)} training and {len(test)} test images of {channels}x{height}x{width}, {len(classes)} classes"
    description = "; ".join([f"{place}: {counts}", *notes])
    return Data(os.fspath(source), train, test, classes, mean, std, wrong, description)


def _find_source(
    name: str | os.PathLike[str], *, image_column: str | None = None, label_column: str | None = None
) -> tuple[Source, str]:
    """Find where a data set comes from; gives the source and, in words, its place.

    In this order: ``digits``; a folder of that path; a folder in $ESAM_DATA named like the last part; the hub.
    """
    asked = os.fspath(name)
    if asked == "digits":
        _refuse_columns(asked, image_column, label_column)
        return Digits(), "digits of scikit-learn"
    path = Path(asked).expanduser()
    folder = path if path.is_dir() else local_copy(asked)
    if folder is None:
        if not HUB_NAME.fullmatch(asked):
            raise unknown_data(asked, "there is no such folder, and a name on the hub reads owner/name")
        return Table(asked, image_column=image_column, label_column=label_column), f"{asked} of the Hugging Face hub"
    place = str(folder) if folder == path else f"{asked} in {folder}"
    if any(folder.glob("*.parquet")) or any(folder.glob("*/*.parquet")):
        return Table(folder, image_column=image_column, label_column=label_column), place
    _refuse_columns(asked, image_column, label_column)
    return ClassFolders(folder), place


def _refuse_columns(asked: str, image_column: str | None, label_column: str | None) -> None:
    for argument, column in (("image_column", image_column), ("label_column", label_column)):
        if column is not None:
            raise ValueError(f"{asked} has no columns to choose from, got {argument}={column!r}; leave it out")


def _train_and_test(
    origin: Source, size: int | None, memory_limit: int
) -> tuple[Split | StreamedSplit, Split | StreamedSplit, tuple[str, ...], list[str]]:
    """Give training and test images from the cache, or decoded and cached now, or to be streamed."""
    folder = cache_folder(origin.identity(), size)
    decoded = read_cache(folder, memory_limit=memory_limit)
    if decoded is None:
        offer = origin.catalogue()
        decoder = decoder_for(offer.train.pictures, size)
        train, test = (StreamedSplit(one.pictures, one.rows, one.labels, decoder) for one in (offer.train, offer.test))
        if (len(train) + len(test)) * decoder.bytes_each > memory_limit:
            notes = [offer.note, f"streamed, with mean and std of {min(SAMPLED, len(train))} training images"]
            return train, test, offer.classes, notes
        decoded = Decoded(train.in_memory(), test.in_memory(), offer.classes, offer.note)
        write_cache(folder, decoded)
    return decoded.train, decoded.test, decoded.classes, [decoded.note]


def _images_for_statistics(train: Split | StreamedSplit) -> Tensor:
    if isinstance(train, Split):
        return train.images
    evenly = torch.linspace(0, len(train) - 1, min(SAMPLED, len(train))).long()
    return train.select(evenly).in_memory().images


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give the mean and standard deviation of each channel of uint8 images, in units of 0..1.

    Counts the 256 values first, so the result is exact whatever the order or number of images. A channel that never
    varies gets a deviation of 1, to be divided by harmlessly.
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    nothing = torch.zeros(256, dtype=torch.int64)
    means, deviations = [], []
    for channel in images.unbind(1):
        counts = sum((part.reshape(-1).bincount(minlength=256) for part in torch.split(channel, COUNTED)), nothing)
        share = counts.double() / counts.double().sum()
        mean = (share * values).sum()
        deviation = (share * (values - mean) ** 2).sum().sqrt()
        means.append(mean.item())
        deviations.append(deviation.item() or 1.0)
    return tuple(means), tuple(deviations)
