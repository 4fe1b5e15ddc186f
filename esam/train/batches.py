"""Which batches does a run see, in which order? The same ones, bit for bit, for every method and after a resume."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .augment import AUGMENTATIONS
from .distributed import Ranks, Rows
from .samples import Batch, Inputs, Samples, as_pair, generator_for, leaves_of, on_device, rows_of, sample_count

Transform = Callable[[Tensor], Tensor]
"""A batch of inputs as they are stored -> as the model takes them."""
Part = tuple[Inputs, Tensor, Rows]
"""What a rank sees of a batch: inputs, targets, and which rows of the batch these are."""
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
        self._augment, self._workers = AUGMENTATIONS[augment], workers or 0
        if isinstance(samples, tuple) and sum(part.nbytes for part in leaves_of(samples[0])) <= MOST_ON_DEVICE:
            samples = on_device(samples[0], device), samples[1].to(device)
        self._samples = samples

    def __len__(self) -> int:
        """Give the number of batches in an epoch."""
        return math.ceil(sample_count(self._samples) / self.batch_size)

    def order(self, number: int) -> Tensor:
        """Give the order of the samples in epoch ``number``: batch b takes ``order[b * batch_size:][:batch_size]``."""
        return torch.randperm(sample_count(self._samples), generator=generator_for("order", self._seed, number))

    def epoch(self, number: int) -> Iterator[Batch]:
        """Give the shuffled, augmented batches of epoch ``number``."""
        return ((x, y) for x, y, _ in self.parts(Ranks(), number))

    def __iter__(self) -> Iterator[Batch]:
        """Give every sample once, in stored order and not augmented: for evaluation."""
        return ((x, y) for x, y, _ in self.parts(Ranks()))

    def parts(self, ranks: Ranks, number: int | None = None) -> Iterator[Part]:
        """Give a rank's parts of the batches of epoch ``number``, or of all in order; nothing else is read.

        What is drawn at random is the same, however many ranks there are.
        """
        order = torch.arange(sample_count(self._samples)) if number is None else self.order(number)
        batches = torch.split(order, self.batch_size)
        parts = [ranks.rows(len(batch)) for batch in batches]
        read = self._read([batch[rows.index] for batch, rows in zip(batches, parts, strict=True)])
        for index, (rows, (x, y)) in enumerate(zip(parts, read, strict=True)):
            if number is not None:
                x = self._augment(x, generator_for("augment", self._seed, number, index), rows)
            if self._transform is not None:
                x = self._transform(x)
            if isinstance(x, Tensor) and x.dim() == 4:
                x = x.contiguous(memory_format=self._memory_format)
            yield x, y, rows

    def _read(self, wanted: Sequence[Tensor]) -> Iterator[Batch]:
        """Give the samples at these rows, batch by batch, with their inputs as they are stored."""
        if isinstance(self._samples, tuple):
            inputs, targets = self._samples
            for rows in wanted:
                index = rows.to(targets.device)
                yield on_device(rows_of(inputs, index), self._device), targets[index]
            return
        loader = DataLoader(
            self._samples,
            batch_sampler=[rows.tolist() for rows in wanted],
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            generator=generator_for("workers"),  # else the loader draws its seed from the global generator
        )
        for x, y in map(as_pair, loader):
            yield on_device(x, self._device), y


def parts_of(batches: Any, ranks: Ranks, epoch: int | None = None) -> Iterator[Part]:
    """Give a rank's part of each batch, of an epoch where the batches have epochs.

    ``Batches`` read nothing else; any other batches must be the same on every rank.
    """
    if isinstance(batches, Batches):
        yield from batches.parts(ranks, epoch)
        return
    for x, y in map(as_pair, batches.epoch(epoch) if epoch and hasattr(batches, "epoch") else batches):
        rows = ranks.rows(len(y))
        yield (rows_of(x, rows.index), y[rows.index], rows) if ranks.several else (x, y, rows)


class Normalise:
    """Turns images of 0..255 into float32 with ``(x / 255 - mean) / std`` in each channel, channels_last in memory."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
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
        seed = generator_for("loader", self._seed, number).initial_seed() % 2**32
        for owner in (self.loader, getattr(self.loader, "sampler", None)):
            if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
                generator.manual_seed(seed)
        states = _random_states()
        with _random_streams(states):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            batches = iter(self.loader)
        while True:
            with _random_streams(states):
                batch = next(batches, None)
            if batch is None:
                return
            yield as_pair(batch)

    def __iter__(self) -> Iterator[Batch]:
        """Give the batches in the order of an epoch that no training has."""
        return self.epoch(0)


@contextmanager
def _random_streams(states: list[Any]) -> Iterator[None]:
    """Put these states of torch's, Python's and NumPy's streams in the place of the global ones; update them after."""
    outside = _random_states()
    _set_random_states(states)
    try:
        yield
    finally:
        states[:] = _random_states()
        _set_random_states(outside)


def _random_states() -> list[Any]:
    return [torch.get_rng_state(), random.getstate(), np.random.get_state()]


def _set_random_states(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
