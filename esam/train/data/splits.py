"""What does a loaded data set consist of?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esam.train.data.pictures import Crop, Decoder, Pictures


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

    pictures: Pictures
    rows: Tensor
    labels: Tensor
    decoder: Decoder

    def __len__(self) -> int:
        """Give the number of images."""
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Give channels, height and width after decoding."""
        return self.decoder.channels, self.decoder.height, self.decoder.width

    def select(self, chosen: Tensor) -> StreamedSplit:
        """Give the part of the split at these positions, in this order."""
        return StreamedSplit(self.pictures, self.rows[chosen], self.labels[chosen], self.decoder)

    def image_at(self, position: int, crop: Crop | None = None) -> NDArray[np.uint8]:
        """Decode one image, or a crop of the whole picture, as an array (H, W, C)."""
        return self.decoder(self.pictures, int(self.rows[position]), crop)

    def in_memory(self) -> Split:
        """Decode every image."""
        # (N, H, W, C) is how pictures decode and what channels_last means, so the images are never turned around.
        pixels = np.empty((len(self), self.decoder.height, self.decoder.width, self.decoder.channels), dtype=np.uint8)
        for position in range(len(self)):
            pixels[position] = self.image_at(position)
        return Split(torch.from_numpy(pixels).permute(0, 3, 1, 2), self.labels)


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
