"""Which batches does a run see, in which order, and how do their images get there?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from esam.train.augment import find_augmentation, inception_crop
from esam.train.data.draws import generator_for
from esam.train.data.share import Part, Rows, Share
from esam.train.data.splits import Split, StreamedSplit

Batch = tuple[Tensor, Tensor]
Key = tuple[str | int, ...]


class Batches:
    """Gives the batches of any epoch, from any batch on: ``(x, y)`` with x float32, normalised, on the device.

    The order of epoch n depends on (seed, n) alone, and the augmentation of its batch b on (seed, n, b) alone. So a
    resumed run, or another method with the same seed, sees the very same batches; the global generator is never used.

    Images in memory move to the device once, as uint8. Streamed ones are decoded by ``workers`` processes (0: in this
    one); augmenting and normalising happen afterwards, on the whole batch and on the device. Only ``inception`` takes
    its crops while streamed pictures that are resized are decoded: out of the whole picture, not of what is left of it.
    """

    def __init__(
        self,
        split: Split | StreamedSplit,
        batch_size: int,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augment: str = "none",
        seed: int = 0,
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.channels_last,
        workers: int = 2,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
        if len(mean) != split.shape[0]:
            raise ValueError(f"mean must hold one number for each of the {split.shape[0]} channels, got {mean}")
        if workers < 0:
            raise ValueError(f"workers must be 0 or more, got {workers}")
        self.batch_size = batch_size
        self._split = split.to(device) if isinstance(split, Split) else split
        self._labels = split.labels.to(device)
        self._augment = find_augmentation(augment)
        self._normalise = Normalise(mean, std, device=device)
        self._seed = seed
        self._device = torch.device(device)
        self._memory_format = memory_format
        self._workers = workers
        self._crops = augment == "inception" and isinstance(split, StreamedSplit) and split.decoder.fit

    def __len__(self) -> int:
        """Give the number of batches in a training epoch."""
        return math.ceil(len(self._split) / self.batch_size)

    def order(self, number: int) -> Tensor:
        """Give the order of the images in epoch ``number``: batch b takes ``order[b * batch_size:][:batch_size]``."""
        return torch.randperm(len(self._split), generator=generator_for("order", self._seed, number))

    def epoch(self, number: int, *, start: int = 0) -> Iterator[Batch]:
        """Give the shuffled, augmented batches of epoch ``number``, beginning with batch ``start``."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be in 0..{len(self)}, the number of batches in an epoch, got {start}")
        return (part[:2] for part in self._augmented(number, start, Share()))

    def in_order(self) -> Iterator[Batch]:
        """Give every image once, in stored order, normalised and not augmented: for evaluation."""
        return (part[:2] for part in self.parts_in_order(Share()))

    def parts(self, number: int, share: Share) -> Iterator[Part]:
        """Give a rank's parts of the batches of epoch ``number``; nothing else is decoded, and draws are the same."""
        return self._augmented(number, 0, share)

    def parts_in_order(self, share: Share) -> Iterator[Part]:
        """Give a rank's parts of the batches for evaluation."""
        batches = torch.split(torch.arange(len(self._split)), self.batch_size)
        for rows, own, images in self._images(batches, share):
            yield self._part(self._normalise(images), rows, own)

    def _augmented(self, number: int, start: int, share: Share) -> Iterator[Part]:
        batches = torch.split(self.order(number), self.batch_size)[start:]
        crops = ("augment", self._seed, number) if self._crops else None
        for index, (rows, own, images) in enumerate(self._images(batches, share, crops), start):
            generator = generator_for("augment", self._seed, number, index)
            x = self._normalise(images) if self._crops else self._augment(images, self._normalise, generator, own)
            yield self._part(x, rows, own)

    def _images(
        self, batches: Sequence[Tensor], share: Share, crops: Key | None = None
    ) -> Iterator[tuple[Tensor, Rows, Tensor]]:
        """Give the share of each batch: where it lies in the split and in the batch, and the uint8 images."""
        owns = [share.rows(len(rows)) for rows in batches]
        shares = [rows[own.slice] for rows, own in zip(batches, owns, strict=True)]
        return zip(shares, owns, self._pixels(shares, crops), strict=True)

    def _pixels(self, batches: Sequence[Tensor], crops: Key | None) -> Iterator[Tensor]:
        """Give the images of each batch of rows, in the order asked for; or crops, drawn by this key."""
        if isinstance(self._split, Split):
            return (self._split.images_at(rows.to(self._device)) for rows in batches)
        return _streamed_images(self._split, batches, workers=self._workers, device=self._device, crops=crops)

    def _part(self, x: Tensor, rows: Tensor, own: Rows) -> Part:
        labels = self._labels[rows.to(self._device)]
        return Part(x.contiguous(memory_format=self._memory_format), labels, own.counted, own.whole)


class Normalise:
    """Turns images of 0..255 into float32 with ``(x / 255 - mean) / std`` in each channel, channels_last in memory."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], *, device: torch.device | str = "cpu") -> None:
        if len(mean) != len(std) or not all(deviation > 0 for deviation in std):
            raise ValueError(f"std must hold {len(mean)} positive numbers, one for each mean, got {std}")
        precise_mean, precise_std = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self._scale = (1 / (255 * precise_std)).to(device, torch.float32)
        self._shift = (-precise_mean / precise_std).to(device, torch.float32)

    def __call__(self, images: Tensor) -> Tensor:
        """Give a new, normalised batch of the same shape."""
        count, channels, height, width = images.shape
        # One row of an image at a time: against vectors of width * channels the multiply and the add use the
        # processor's full width; against vectors of 3 channels they take seventeen times as long.
        pixels = images.permute(0, 2, 3, 1)
        pixels = pixels.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        rows = pixels.view(count * height, width * channels)
        rows.mul_(self._scale.repeat(width)).add_(self._shift.repeat(width))
        return pixels.permute(0, 3, 1, 2)


def _streamed_images(
    split: StreamedSplit, batches: Sequence[Tensor], *, workers: int, device: torch.device, crops: Key | None = None
) -> Iterator[Tensor]:
    """Give the uint8 images (N, C, H, W) of each batch of positions, decoded ahead of need by worker processes.

    With 0 workers they are decoded here, one batch at a time.
    """
    loader = DataLoader(
        _Pixels(split, crops),
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

    def __init__(self, split: StreamedSplit, crops: Key | None = None) -> None:
        self._split, self._crops = split, crops

    def __getitem__(self, position: int) -> Tensor | ValueError:
        crop = None if self._crops is None else inception_crop(generator_for(*self._crops, position))
        try:
            return torch.from_numpy(self._split.image_at(position, crop).copy())  # a copy: Pillow's memory is read-only
        except ValueError as error:
            return ValueError(str(error))  # without its cause, which may not travel between processes


def _stacked(samples: list[Tensor | ValueError]) -> Tensor | ValueError:
    """Give one batch, or the first error among its images."""
    images = [sample for sample in samples if isinstance(sample, Tensor)]
    errors = [sample for sample in samples if isinstance(sample, ValueError)]
    return errors[0] if errors else torch.stack(images)
