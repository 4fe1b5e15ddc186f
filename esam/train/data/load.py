"""How does a name become training and test images?"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from esam.train.data.cache import Decoded, cache_folder, read_cache, write_cache
from esam.train.data.catalogue import Source
from esam.train.data.labels import balanced_subset, check_share, flip_labels, held_out
from esam.train.data.normalise import channel_statistics
from esam.train.data.pictures import Decoder, decoder_for
from esam.train.data.sources import find_source
from esam.train.data.splits import Data, Listing, Split, StreamedSplit

MEMORY_LIMIT = 2**30  # bytes of decoded images; CIFAR takes 184 MB, ImageNet at 224 pixels 200 GB
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
    origin, place = find_source(source, image_column=image_column, label_column=label_column)
    train, test, classes, notes = _splits(origin, size, memory_limit)
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
        train = train.relabelled(labels)
        notes.append(f"{int(wrong.sum())} training labels made wrong (seed {seed})")
    mean, std = channel_statistics(_images_for_statistics(train))
    channels, height, width = train.shape
    counts = f"{len(train)} training and {len(test)} test images of {channels}x{height}x{width}, {len(classes)} classes"
    description = "; ".join([f"{place}: {counts}", *notes])
    return Data(os.fspath(source), train, test, classes, mean, std, wrong, description)


def _splits(
    origin: Source, size: int | None, memory_limit: int
) -> tuple[Split | StreamedSplit, Split | StreamedSplit, tuple[str, ...], list[str]]:
    """Give training and test images from the cache, or decoded and cached now, or to be streamed."""
    folder = cache_folder(origin.identity(), size)
    decoded = read_cache(folder, memory_limit=memory_limit)
    if decoded is None:
        offer = origin.catalogue()
        decoder = decoder_for(offer.train.pictures, size)
        if (len(offer.train) + len(offer.test)) * decoder.bytes_each > memory_limit:
            notes = [offer.note, f"streamed, with mean and std of {min(SAMPLED, len(offer.train))} training images"]
            return StreamedSplit(offer.train, decoder), StreamedSplit(offer.test, decoder), offer.classes, notes
        decoded = Decoded(_decode(offer.train, decoder), _decode(offer.test, decoder), offer.classes, offer.note)
        write_cache(folder, decoded)
    return decoded.train, decoded.test, decoded.classes, [decoded.note]


def _decode(listing: Listing, decoder: Decoder) -> Split:
    # (N, H, W, C) is how pictures decode and what channels_last means, so the images are never turned around.
    pixels = np.empty((len(listing), decoder.height, decoder.width, decoder.channels), dtype=np.uint8)
    for position, row in enumerate(listing.rows.tolist()):
        pixels[position] = decoder(listing.pictures, row)
    return Split(torch.from_numpy(pixels).permute(0, 3, 1, 2), listing.labels)


def _images_for_statistics(train: Split | StreamedSplit) -> Tensor:
    if isinstance(train, Split):
        return train.images
    evenly = torch.linspace(0, len(train) - 1, min(SAMPLED, len(train))).long()
    return _decode(train.listing.select(evenly), train.decoder).images
