"""What does a loaded data set consist of?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esam.train.data.pictures import Decoder, Pictures


@dataclass(frozen=True)
class Split:
    """Images in memory: uint8 ``(N, C, H, W)``, best channels_last, and int64 labels ``(N,)``."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Give the number of images."""
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Give channels, height and width."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def images_at(self, rows: Tensor) -> Tensor:
        """Give the images at these rows, in this order, channels_last in memory."""
        # Turned this way each image is one run of bytes, and gathering is one memory copy per image.
        return self.images.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)

    def select(self, rows: Tensor) -> Split:
        """Give the part of the split at these rows, in this order."""
        return Split(self.images_at(rows), self.labels[rows])

    def to(self, device: torch.device | str) -> Split:
        """Give the split on a device, channels_last in memory; without a copy where it is so already."""
        images = self.images.to(device).contiguous(memory_format=torch.channels_last)
        return Split(images, self.labels.to(device))

    def relabelled(self, labels: Tensor) -> Split:
        """Give the same images under other labels."""
        return Split(self.images, labels)


@dataclass(frozen=True)
class Listing:
    """Stored pictures and their labels: ``labels[i]`` belongs to ``pictures.open(rows[i])``."""

    pictures: Pictures
    rows: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Give the number of pictures listed."""
        return len(self.labels)

    def select(self, chosen: Tensor) -> Listing:
        """Give the part of the listing at these positions."""
        return Listing(self.pictures, self.rows[chosen], self.labels[chosen])


@dataclass(frozen=True)
class StreamedSplit:
    """Images too many for memory: listed here, decoded when a batch asks for them."""

    listing: Listing
    decoder: Decoder

    def __len__(self) -> int:
        """Give the number of images."""
        return len(self.listing)

    @property
    def labels(self) -> Tensor:
        """Give the labels, int64 ``(N,)``."""
        return self.listing.labels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Give channels, height and width after decoding."""
        return self.decoder.channels, self.decoder.height, self.decoder.width

    def select(self, rows: Tensor) -> StreamedSplit:
        """Give the images at these positions, in this order."""
        return StreamedSplit(self.listing.select(rows), self.decoder)

    def relabelled(self, labels: Tensor) -> StreamedSplit:
        """Give the same images under other labels."""
        return StreamedSplit(replace(self.listing, labels=labels), self.decoder)


@dataclass(frozen=True)
class Data:
    """A data set ready to train on.

    ``mean`` and ``std`` are those of the training images, per channel, in units of 0..1. ``wrong`` marks the training
    labels that label noise made wrong; None without noise. ``description`` says in words what was loaded.
    """

    name: str
    train: Split | StreamedSplit
    test: Split | StreamedSplit
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    wrong: Tensor | None
    description: str
