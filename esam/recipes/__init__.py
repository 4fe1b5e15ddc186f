"""Experiments by name. A recipe is a function that returns a typed comparison; it reads like a lab note."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .cifar import cifar10_small, cifar10_small_noisy, cifar100_small
from .demo import demo

if TYPE_CHECKING:
    from esam.runs import Comparison

RECIPES: dict[str, Callable[[], Comparison]] = {
    "demo": demo,
    "cifar10-small": cifar10_small,
    "cifar10-small-noisy": cifar10_small_noisy,
    "cifar100-small": cifar100_small,
}
