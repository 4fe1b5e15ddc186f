"""Which samples does a run train on, and which is it judged by? Arrays from local copies, split by the seed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from esam.train import Config
from esam.train.datasets import load_data

POOL = 40_000  # training images of the trial; the rest of the official 50,000 is for development alone
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Split:
    """The samples of one run: those it trains on, and those it is judged by."""

    inputs: Tensor
    targets: Tensor
    judge_inputs: Tensor
    judge_targets: Tensor

    def fingerprint(self) -> str:
        """Return a short hash of every sample and label."""
        digest = hashlib.sha256()
        for tensor in (self.inputs, self.targets, self.judge_inputs, self.judge_targets):
            digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
        return digest.hexdigest()[:16]


def folder() -> Path:
    """Return the folder of local copies, named by ESAM_DATA."""
    if not (name := os.environ.get("ESAM_DATA")):
        raise SystemExit(
            "set ESAM_DATA to a folder with cifar10/, cifar100/, resnet20_cifar10.npz and tinyshakespeare.txt"
        )
    return Path(name)


@cache
def images(name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (n, 32, 32, 3) and labels of a part of CIFAR."""
    pixels, labels = getattr(load_data(Config(data=f"uoft-cs/{name}")), part)
    return pixels.permute(0, 2, 3, 1).numpy(), labels.numpy()


def pictures(
    name: str, *, seed: int, train: int, judge: int, size: int, purpose: str, wrong: float = 0.0, pool: int = POOL
) -> Split:
    """Draw a run's images by its seed.

    Args:
        name: "cifar10" or "cifar100".
        seed: Draws the images that are trained on, those held out, and the wrong labels.
        train, judge: How many images to train on (fewer where those to be judged by would be missing), and to be
            judged by.
        size: Side in pixels; the originals have 32.
        purpose: "test" judges by the official test images; "validation" by images of the pool that are not trained on;
            "development" draws both from the images that the trial never uses.
        wrong: Share of the labels that are wrong, in validation too; test labels are as they are.
        pool: How many of the training images the trial draws from.
    """
    rng = np.random.default_rng([seed, 20261117])
    every, labels = images(name, "train")
    drawn = rng.permutation(np.arange(POOL, len(every)) if purpose == "development" else np.arange(pool))
    labels = labels.copy()
    if wrong:
        spoilt = drawn[rng.random(len(drawn)) < wrong]
        classes = labels.max() + 1
        labels[spoilt] = (labels[spoilt] + rng.integers(1, classes, len(spoilt))) % classes
    if purpose != "test":
        train = min(train, len(drawn) - judge)
    ours, held = drawn[:train], drawn[train : train + judge]
    judged, answers = images(name, "test") if purpose == "test" else (every[held], labels[held])
    return Split(scaled(every[ours], size), torch.tensor(labels[ours]), scaled(judged, size), torch.tensor(answers))


def scaled(pictures: np.ndarray, size: int) -> Tensor:
    """Return normalised images of this side, by the mean of each block of pixels."""
    tensor = torch.tensor(pictures).permute(0, 3, 1, 2).float() / 255
    if size != tensor.shape[-1]:
        tensor = torch.nn.functional.avg_pool2d(tensor, tensor.shape[-1] // size)
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return ((tensor - mean) / deviation).contiguous(memory_format=torch.channels_last)


def augmented(batch: Tensor, shift: int, generator: torch.Generator) -> Tensor:
    """Flip half of the images and shift each by up to ``shift`` pixels."""
    n, _, side, _ = batch.shape
    padded = torch.nn.functional.pad(batch, (shift,) * 4, mode="reflect").permute(0, 2, 3, 1)
    top, left = torch.randint(0, 2 * shift + 1, (2, n), generator=generator)
    flipped = torch.rand(n, generator=generator) < 0.5
    rows, columns = top[:, None] + torch.arange(side), left[:, None] + torch.arange(side)
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def text(*, seed: int, train: int, judge: int, length: int, purpose: str) -> Split:
    """Draw a run's stretch of text: windows of ``length`` characters, each with the characters that follow.

    The last tenth of the text is the test; the quarter before it is for development alone; the rest is the pool, in
    which the seed chooses where training and validation begin.
    """
    characters = np.frombuffer((folder() / "tinyshakespeare.txt").read_bytes(), dtype=np.uint8)
    codes = torch.tensor(np.unique(characters, return_inverse=True)[1])
    n = len(codes)
    rng = np.random.default_rng([seed, 20261117])
    start, stop = (int(0.65 * n), int(0.9 * n)) if purpose == "development" else (0, int(0.65 * n))
    begin = start + int(rng.integers(0, stop - start - train - judge))
    judged = codes[int(0.9 * n) :] if purpose == "test" else codes[begin + train : begin + train + judge]
    inputs, targets = windows(codes[begin : begin + train], length)
    return Split(inputs, targets, *windows(judged, length))


def windows(codes: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cut a text into windows, each with the same window one character on."""
    count = (len(codes) - 1) // length
    return codes[: count * length].view(count, length), codes[1 : count * length + 1].view(count, length)
