"""Which batches does a run see, in which order? The same ones, bit for bit, for every method and after a resume."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from .augment import find_augmentation
from .distributed import Part, Ranks, Rows
from .draws import generator_for
from .samples import Batch, Samples, as_pair, bytes_of, on_device, rows_of, sample_count

Transform = Callable[[Tensor], Tensor]
"""A batch of inputs as they are stored -> as the model takes them."""
MOST_ON_DEVICE = 2**30
"""Bytes of inputs that move to the device at once; more stay where they are, and batches move."""


class Batches:
    """Gives the batches of any epoch: ``(x, y)`` as the model takes them, on the device.

    The order of epoch n depends on (seed, n) alone, and the augmentation of its batch b on (seed, n, b) alone. So a
    resumed run, or another method with the same seed, sees the very same batches; the global generator is never used.

    Tensors move to the device once, unless they are large. The rows of a Dataset are read by ``workers`` processes (0
    or None: in this one). ``augment`` and ``transform`` are applied to whole batches on the device.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        transform: Transform | None = None,
        augment: str = "none",
        seed: int = 0,
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
        workers: int | None = None,
    ) -> None:
        self.batch_size, self._seed, self._device = batch_size, seed, torch.device(device)
        self._memory_format, self._transform = memory_format, transform
        self._augment, self._workers = find_augmentation(augment), workers or 0
        small = isinstance(samples, tuple) and bytes_of(samples[0]) <= MOST_ON_DEVICE
        self._samples = (on_device(samples[0], device), samples[1].to(device)) if small else samples

    def __len__(self) -> int:
        """Give the number of batches in an epoch."""
        return math.ceil(sample_count(self._samples) / self.batch_size)

    def order(self, number: int) -> Tensor:
        """Give the order of the samples in epoch ``number``: batch b takes ``order[b * batch_size:][:batch_size]``."""
        return torch.randperm(sample_count(self._samples), generator=generator_for("order", self._seed, number))

    def epoch(self, number: int) -> Iterator[Batch]:
        """Give the shuffled, augmented batches of epoch ``number``."""
        return (part[:2] for part in self.parts(Ranks(), number))

    def __iter__(self) -> Iterator[Batch]:
        """Give every sample once, in stored order and not augmented: for evaluation."""
        return (part[:2] for part in self.parts(Ranks()))

    def parts(self, ranks: Ranks, number: int | None = None) -> Iterator[Part]:
        """Give a rank's parts of the batches of epoch ``number``, or of all in order; nothing else is read.

        What is drawn at random is the same, however many ranks there are.
        """
        for index, (rows, x, y) in enumerate(self._read(ranks, number)):
            if number is not None:
                x = self._augment(x, generator_for("augment", self._seed, number, index), rows)
            if self._transform is not None:
                x = self._transform(x)
            if isinstance(x, Tensor) and x.dim() == 4:
                x = x.contiguous(memory_format=self._memory_format)
            yield Part(x, y, rows.counted, rows.whole)

    def _read(self, ranks: Ranks, number: int | None) -> Iterator[tuple[Rows, Any, Tensor]]:
        """Give this rank's rows of each batch, with their inputs as they are stored and their targets."""
        order = torch.arange(sample_count(self._samples)) if number is None else self.order(number)
        batches = torch.split(order, self.batch_size)
        places = [ranks.rows(len(batch)) for batch in batches]
        wanted = [batch[rows.slice] for batch, rows in zip(batches, places, strict=True)]
        if isinstance(self._samples, tuple):
            inputs, targets = self._samples
            placed = (rows.to(targets.device) for rows in wanted)
            read: Iterator[Batch] = ((on_device(rows_of(inputs, r), self._device), targets[r]) for r in placed)
        else:
            read = read_rows(self._samples, wanted, workers=self._workers, device=self._device)
        for rows, (x, y) in zip(places, read, strict=True):
            yield rows, x, y


def read_rows(
    samples: Dataset[Any], batches: Sequence[Tensor], *, workers: int, device: torch.device
) -> Iterator[Batch]:
    """Give the rows of a Dataset batch by batch, read ahead of need by worker processes; with 0 workers, here."""
    loader = DataLoader(
        _Rows(samples),
        batch_sampler=[rows.tolist() for rows in batches],
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=device.type == "cuda",
        generator=generator_for("workers"),  # else the loader draws its seed from the global generator
    )
    for batch in loader:
        if isinstance(batch, ValueError):
            raise batch
        x, y = as_pair(batch)
        yield on_device(x, device), y


class _Rows(Dataset[Any]):
    """Rows of a Dataset; one that cannot be read comes back as its error.

    Raised inside a worker, it would reach the user wrapped in the worker's own traceback, and leave workers behind that
    take seconds to end.
    """

    def __init__(self, samples: Dataset[Any]) -> None:
        self._samples = samples

    def __getitem__(self, row: int) -> Any:
        try:
            return self._samples[row]
        except ValueError as error:
            return error


def _collate(rows: list[Any]) -> Any:
    """Make a batch of rows, or give the first error among them."""
    return next((row for row in rows if isinstance(row, ValueError)), None) or default_collate(rows)


class Normalise:
    """Turns images of 0..255 into float32 with ``(x / 255 - mean) / std`` in each channel, channels_last in memory."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        if len(mean) != len(std) or not all(deviation > 0 for deviation in std):
            raise ValueError(f"std must hold {len(mean)} positive numbers, one for each mean, got {std}")
        self.mean, self.std = mean, std
        precise_mean, precise_std = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self._scale = (1 / (255 * precise_std)).float()
        self._shift = (-precise_mean / precise_std).float()

    def __call__(self, images: Tensor) -> Tensor:
        """Give a new, normalised batch of the same shape."""
        count, channels, height, width = images.shape
        # One row of an image at a time: against vectors of width * channels the multiply and the add use the
        # processor's full width; against vectors of 3 channels they take seventeen times as long.
        pixels = images.permute(0, 2, 3, 1)
        pixels = pixels.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        rows = pixels.view(count * height, width * channels)
        scale, shift = (each.to(images.device).repeat(width) for each in (self._scale, self._shift))
        rows.mul_(scale).add_(shift)
        return pixels.permute(0, 3, 1, 2)


class SeededLoader:
    """A DataLoader whose epoch n depends on (seed, n) alone: order, samplers, and what its Dataset draws.

    The loader draws from random streams of its own, so that a method which draws more than another in a step sees the
    same batches, and a resumed run those that it would have seen.
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int = 0) -> None:
        self.loader, self._seed = loader, seed

    def __len__(self) -> int:
        """Give the number of batches in an epoch; a stream without a length raises TypeError, as the loader does."""
        return len(self.loader)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Give the batches of epoch ``number``."""
        streams = _Streams(generator_for("loader", self._seed, number).initial_seed() % 2**32)
        for owner in (self.loader, getattr(self.loader, "sampler", None)):
            if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
                generator.manual_seed(streams.seed)
        with streams:
            batches = iter(self.loader)
        while True:
            with streams:
                batch = next(batches, None)
            if batch is None:
                return
            yield as_pair(batch)

    def __iter__(self) -> Iterator[Batch]:
        """Give the batches in the order of an epoch that no training has."""
        return self.epoch(0)


class _Streams:
    """Random streams of torch, Python and NumPy that are in the place of the global ones inside the block."""

    def __init__(self, seed: int) -> None:
        self.seed, self._other = seed, _states()
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        self._exchange()

    def _exchange(self, *error: object) -> None:
        """Put the global streams and the other ones in each other's place."""
        now = _states()
        torch.set_rng_state(self._other[0])
        random.setstate(self._other[1])
        if self._other[2] is not None:
            sys.modules["numpy"].random.set_state(self._other[2])
        self._other = now

    __enter__ = __exit__ = _exchange


def _states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()
