"""Which images does a run on the CPU train on? A part that its seed draws, 16 x 16; and what its steps saw of them.

    experiments.paper.data:cifar10_seed3              1,000 images drawn by seed 3, tested on the test images
    experiments.paper.data:cifar10_seed3_held_out     the same, tested on 2,000 other training images

CIFAR is found as ``esam`` finds it (by download, or in the folder that ESAM_DATA names); ImageNet's stand-in is
ESAM_DATA/tiny_imagenet_20.npz: 20 classes of Tiny-ImageNet.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from esam.train import Config, Task
from esam.train.samples import rank_within_class

SIDE = 16
DRAWN = {"cifar10": 1_000, "cifar100": 1_000, "imagenet20": 1_000, "digits": 60}
HELD_OUT = 2_000
CLASSES = {"CIFAR-10": 10, "CIFAR-100": 100, "ImageNet": 20}
_NAME = re.compile(rf"({'|'.join(DRAWN)})_seed(\d+)(_held_out)?")


def __getattr__(name: str) -> Callable[[], Task]:
    if found := _NAME.fullmatch(name):
        return partial(drawn, found[1], int(found[2]), held_out=bool(found[3]))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def drawn(name: str, seed: int, *, held_out: bool = False) -> Task:
    """Return the images that a seed draws, as many of each class, normalised by the mean and deviation of all."""
    images, labels, test, test_labels = _images(name)
    shuffled, rank = rank_within_class(labels, torch.Generator().manual_seed(1_000_003 * (seed + 1)))
    order = shuffled[rank.argsort(stable=True)]  # the first of every class, then the second of every class, ...
    rows = order[: DRAWN[name]]
    if held_out:
        others = order[DRAWN[name] : DRAWN[name] + HELD_OUT]
        test, test_labels = images[others], labels[others]
    mean, std = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
    classes = tuple(map(str, range(int(labels.max()) + 1)))
    train = ((images[rows] - mean) / std, labels[rows])
    return Task(train, ((test - mean) / std, test_labels), loss=WATCH.loss, classes=classes)


@lru_cache(maxsize=3)
def _images(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training and test images of SIDE pixels in [0, 1], with labels."""
    if name == "imagenet20":
        return _imagenet()
    from esam.train.datasets import load_data

    data = load_data(Config(data="digits" if name == "digits" else f"uoft-cs/{name}"))
    parts = []
    for split in (data.train, data.test):
        images, labels = split  # type: ignore[misc]
        pixels = images.float() / 255
        side = pixels.shape[-1]
        parts += [F.avg_pool2d(pixels, side // SIDE) if side > SIDE else pixels, labels]
    return tuple(parts)  # type: ignore[return-value]


def _imagenet() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    import numpy as np
    from PIL import Image

    path = Path(os.environ.get("ESAM_DATA", ".")) / "tiny_imagenet_20.npz"
    if not path.exists():
        raise ValueError(f"{path} is not there; put tiny_imagenet_20.npz into a folder and name it by --data")
    with np.load(path) as arrays:
        stored, ends = arrays["jpeg"].tobytes(), arrays["ends"].tolist()
        train, labels = int(arrays["train"]), torch.tensor(arrays["train_labels"]).long()
        test_labels = torch.tensor(arrays["test_labels"]).long()
    pictures = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        picture = Image.open(io.BytesIO(stored[start:end])).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
        pictures.append(torch.tensor(np.asarray(picture)).permute(2, 0, 1))
    images = torch.stack(pictures).float() / 255
    return images[:train], labels, images[train:], test_labels


class Watch:
    """Sees the losses of a step from inside the loss: at theta, at theta + eps, and of the samples kept.

    A step of ESAM with exact ranking asks for the losses of the batch at theta, of the batch at theta + eps without a
    gradient, and of B+ with one. Nothing else asks in that order, so nothing in the step need know.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[bool, Tensor]] = []
        self.batches: list[dict[str, float]] = []

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy of each sample."""
        losses = F.cross_entropy(outputs, targets, reduction="none")
        self.calls = [*self.calls[-2:], (losses.requires_grad, losses.detach())]
        if [grad for grad, _ in self.calls] == [True, False, True]:
            (_, start), (_, moved), (_, kept) = self.calls
            if len(start) == len(moved) > len(kept):
                self.batches.append(set_losses(start, moved, len(kept)))
        return losses

    def epoch(self) -> dict[str, list[float]]:
        """Return what the batches of an epoch came to, and forget them."""
        found: dict[str, Any] = {name: [b[name] for b in self.batches] for name in (self.batches or [{}])[0]}
        self.batches.clear()
        return found


def set_losses(start: Tensor, moved: Tensor, count: int) -> dict[str, float]:
    """Return the mean losses of B+, B- and B at theta and at theta + eps; B+ are the samples that rise most."""
    order = (moved - start).argsort(descending=True, stable=True)
    sets = {"B+": order[:count], "B-": order[count:], "B": order}
    named = {"theta": start, "eps": moved}
    return {f"{s} at {at}": float(values[rows].mean()) for s, rows in sets.items() for at, values in named.items()}


WATCH = Watch()
