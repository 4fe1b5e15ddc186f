"""CIFAR at a size that two CPU cores train: a ResNet-8 in a regime where SGD fits its training data."""

from __future__ import annotations

from dataclasses import replace

from esam.runs.plan import Comparison
from esam.train.config import Config


def cifar10_small() -> Comparison:
    """ResNet-8, 2,500 images of CIFAR-10, 40 epochs, batch 64, no augmentation; rho 0.05 by a small search."""
    config = Config(
        data="uoft-cs/cifar10",
        model="resnet8",
        epochs=40,
        batch_size=64,
        train_size=2_500,
        evaluate_every=10,
        threads=1,
    )
    return Comparison(config, ("base", "base-part", "sam", "esam", "esam-swp", "esam-sds", "esam-random", "slicesam"))


def cifar10_small_noisy() -> Comparison:
    """The same with 20 % of the training labels wrong, and rho searched for again."""
    clean = cifar10_small()
    return replace(clean, config=replace(clean.config, label_noise=0.2), settings={"esam": {"rho": 0.1}})


def cifar100_small() -> Comparison:
    """The same on CIFAR-100, where 40 epochs are too short to fit."""
    clean = cifar10_small()
    methods = ("base", "base-part", "sam", "esam", "esam-random", "slicesam")
    return replace(clean, config=replace(clean.config, data="uoft-cs/cifar100"), methods=methods)
