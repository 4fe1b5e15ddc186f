"""CIFAR at a size that two CPU cores train: a ResNet-8 in a regime where SGD fits its training data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from esam.runs.plan import Comparison
from esam.train.config import Config

METHODS = ("base", "base-part", "sam", "esam", "esam-swp", "esam-sds", "esam-random", "slicesam")


def cifar10_small() -> Comparison:
    """ResNet-8, 2,500 images of CIFAR-10, 40 epochs, batch 64, no augmentation; rho by a small search."""
    config = Config(
        data="uoft-cs/cifar10",
        model="resnet8",
        epochs=40,
        batch_size=64,
        train_size=2_500,
        evaluate_every=10,
        threads=1,
    )
    return Comparison(config, METHODS, settings=_radii(METHODS))


def cifar10_small_noisy() -> Comparison:
    """The same with 20 % of the training labels wrong, and rho searched for again."""
    clean = cifar10_small()
    settings = {**clean.settings, "esam": {"rho": 0.1}}
    return dataclasses.replace(clean, config=dataclasses.replace(clean.config, label_noise=0.2), settings=settings)


def cifar100_small() -> Comparison:
    """The same on CIFAR-100, where 40 epochs are too short to fit."""
    clean = cifar10_small()
    methods = ("base", "base-part", "sam", "esam", "esam-random", "slicesam")
    return dataclasses.replace(
        clean,
        config=dataclasses.replace(clean.config, data="uoft-cs/cifar100"),
        methods=methods,
        settings=_radii(methods),
    )


def _radii(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {method: {"rho": 0.05} for method in methods if method.startswith(("sam", "esam"))}
