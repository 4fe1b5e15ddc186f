"""Which batch comes when, and with which draws?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from esam.train.augment import find_augmentation
from esam.train.data.normalise import Normalise
from esam.train.data.seeds import generator_for
from esam.train.data.splits import Split, StreamedSplit
from esam.train.data.streaming import streamed_images

Batch = tuple[Tensor, Tensor]


class Batches:
    """Gives the batches of any epoch, from any batch on: ``(x, y)`` with x float32, normalised, on the device.

    The order of epoch n depends on (seed, n) alone, and the augmentation of its batch b on (seed, n, b) alone. So a
    resumed run, or another method with the same seed, sees the very same batches; the global generator is never used.

    Images in memory move to the device once, as uint8. Streamed ones are decoded by ``workers`` processes (0: in this
    one); augmenting and normalising happen afterwards, on the whole batch and on the device.
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
        drop_last: bool = False,
        workers: int = 2,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
        if drop_last and batch_size > len(split):
            raise ValueError(
                f"batch_size must be at most {len(split)}, the number of images, got {batch_size}; "
                "with drop_last=True nothing would be left"
            )
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
        self._drop_last = drop_last
        self._workers = workers

    def __len__(self) -> int:
        """Give the number of batches in a training epoch."""
        whole, rest = divmod(len(self._split), self.batch_size)
        return whole if self._drop_last or rest == 0 else whole + 1

    def order(self, number: int) -> Tensor:
        """Give the order of the images in epoch ``number``: batch b takes ``order[b * batch_size:][:batch_size]``."""
        return torch.randperm(len(self._split), generator=generator_for("order", self._seed, number))

    def epoch(self, number: int, *, start: int = 0) -> Iterator[Batch]:
        """Give the shuffled, augmented batches of epoch ``number``, beginning with batch ``start``."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be in 0..{len(self)}, the number of batches in an epoch, got {start}")
        return self._augmented(number, start)

    def in_order(self) -> Iterator[Batch]:
        """Give every image once, in stored order, normalised and not augmented: for evaluation."""
        batches = torch.split(torch.arange(len(self._split)), self.batch_size)
        for rows, images in zip(batches, self._images(batches), strict=True):
            yield self._batch(self._normalise(images), rows)

    def _augmented(self, number: int, start: int) -> Iterator[Batch]:
        batches = torch.split(self.order(number), self.batch_size)[start : len(self)]
        for index, (rows, images) in enumerate(zip(batches, self._images(batches), strict=True), start):
            generator = generator_for("augment", self._seed, number, index)
            yield self._batch(self._augment(images, self._normalise, generator), rows)

    def _images(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Give the uint8 images of each batch of rows, in the order asked for."""
        if isinstance(self._split, Split):
            return (self._split.images_at(rows.to(self._device)) for rows in batches)
        return streamed_images(self._split, batches, workers=self._workers, device=self._device)

    def _batch(self, x: Tensor, rows: Tensor) -> Batch:
        return x.contiguous(memory_format=self._memory_format), self._labels[rows.to(self._device)]
