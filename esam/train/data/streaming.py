"""How do images that do not fit into memory reach the training step?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from esam.train.data.seeds import generator_for
from esam.train.data.splits import StreamedSplit


def streamed_images(
    split: StreamedSplit, batches: Sequence[Tensor], *, workers: int, device: torch.device
) -> Iterator[Tensor]:
    """Give the uint8 images (N, C, H, W) of each batch of positions, decoded ahead of need by worker processes.

    With 0 workers they are decoded here, one batch at a time.
    """
    loader = DataLoader(
        _Pixels(split),
        batch_sampler=[positions.tolist() for positions in batches],
        num_workers=workers,
        collate_fn=_stacked,
        pin_memory=device.type == "cuda",
        generator=generator_for("workers"),  # else the loader draws its seed from the global generator
    )
    for pixels in loader:
        if isinstance(pixels, ValueError):
            raise pixels
        yield pixels.to(device, non_blocking=True).permute(0, 3, 1, 2)


class _Pixels(Dataset[Tensor | ValueError]):
    """Decoded images, one at a time, as (H, W, C) tensors of uint8.

    A picture that cannot be read comes back as its error: raised inside a worker, it would reach the user wrapped in
    the worker's own traceback, and leave workers behind that take seconds to end.
    """

    def __init__(self, split: StreamedSplit) -> None:
        self._split = split

    def __getitem__(self, position: int) -> Tensor | ValueError:
        listing = self._split.listing
        try:
            array = self._split.decoder(listing.pictures, int(listing.rows[position]))
        except ValueError as error:
            return ValueError(str(error))  # without its cause, which may not travel between processes
        return torch.from_numpy(array.copy())  # a copy because Pillow's memory is read-only


def _stacked(samples: list[Tensor | ValueError]) -> Tensor | ValueError:
    """Give one batch, or the first error among its images."""
    images = []
    for sample in samples:
        if isinstance(sample, ValueError):
            return sample
        images.append(sample)
    return torch.stack(images)
