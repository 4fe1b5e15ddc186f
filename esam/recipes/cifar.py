"""CIFAR-10 at a size that two CPU cores train: a ResNet-8 in a regime where SGD fits its training data."""

from __future__ import annotations

import dataclasses

from esam.compare.plan import Comparison
from esam.train.config import Config

METHODS = ("sgd", "sam", "esam", "esam-swp", "esam-sds")


def cifar10_small() -> Comparison:
    """ResNet-8, 2,500 images, 40 epochs, batch 64, no augmentation: SGD reaches 100 % of its training images."""
    config = Config(
        data="uoft-cs/cifar10",
        model="resnet8",
        epochs=40,
        batch_size=64,
        train_size=2_500,
        evaluate_every=10,
        threads=1,
    )
    return Comparison(config, methods=METHODS)


def cifar10_small_noisy() -> Comparison:
    """The same with 20 % of the training labels wrong."""
    clean = cifar10_small()
    return dataclasses.replace(clean, config=dataclasses.replace(clean.config, label_noise=0.2))
