"""What will it cost? Operations counted, and one stated assumption on how many a machine does a second.

A step counts as its method's row says (SGD 3, SAM 6); a forward pass of one image is counted by torch's own counter on
a model without storage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from esam.train.config import Config, find_method

RATES = {"CPU": 60e9, "GPU": 10e12}
"""Operations a second, sustained. CPU: one core in one thread, as small ResNets reach it (54 to 90e9). GPU: what the
paper's 3,387 images/s by SGD on ResNet-18 amount to (3 x 1.1e9 operations an image)."""
RATE_WORDS = {
    "CPU": "60e9 operations a second on one core",
    "GPU": "10e12 operations a second on one GPU, the paper's own speed on ResNet-18",
}


@dataclass(frozen=True)
class DataFacts:
    """What is known of a data set without reading it, and how to get it."""

    train: int
    test: int
    classes: int
    channels: int
    size: int
    how: str


_FROM_HUB = "downloaded by that name from the Hugging Face hub, or put a copy into a folder {name}/ and set ESAM_DATA"
_BY_TERMS = (
    "accept its terms at https://huggingface.co/datasets/ILSVRC/imagenet-1k and log in with huggingface-cli, or set "
    "ESAM_DATA to a folder that holds imagenet-1k/train/<class>/ and imagenet-1k/val/<class>/"
)
DATA = {
    "digits": DataFacts(1_437, 360, 10, 1, 8, "comes with scikit-learn: pip install scikit-learn"),
    "uoft-cs/cifar10": DataFacts(50_000, 10_000, 10, 3, 32, _FROM_HUB.format(name="cifar10")),
    "uoft-cs/cifar100": DataFacts(50_000, 10_000, 100, 3, 32, _FROM_HUB.format(name="cifar100")),
    "ILSVRC/imagenet-1k": DataFacts(1_281_167, 50_000, 1000, 3, 224, _BY_TERMS),
}


def units(config: Config) -> float:
    """Return what a step of the configured method costs, in forward passes."""
    return find_method(config.method).units(config.settings)


def forward_flops(config: Config) -> float:
    """Return the operations of one image's forward pass."""
    facts = _facts(config)
    return _counted(config.model, facts.classes, facts.channels, config.size or facts.size)


def run_flops(config: Config) -> float:
    """Return the operations of a whole run, its evaluations included; the last is of the training images too."""
    images, facts = training_images(config), _facts(config)
    evaluated = images + facts.test * max(1, config.epochs // config.evaluate_every)
    return forward_flops(config) * (units(config) * config.epochs * images + evaluated)


def training_images(config: Config) -> int:
    """Return how many images a run trains on; a fifth of all is held out where it is judged on them."""
    facts = _facts(config)
    return config.train_size or (facts.train - facts.train // 5 if config.validation else facts.train)


def hours(flops: float, machine: str) -> float:
    """Return the hours that one core or one GPU takes by the stated assumption."""
    return flops / RATES[machine] / 3600


def total_flops(configs: Iterable[Config]) -> float:
    """Return the operations of several runs."""
    return sum(run_flops(config) for config in configs)


@cache
def _counted(model: str, classes: int, channels: int, size: int) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from esam.train.models import build_model

    with torch.device("meta"):
        network = build_model(model, classes=classes, channels=channels, size=size).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(torch.empty(1, channels, size, size))
    return float(counter.get_total_flops())


def _facts(config: Config) -> DataFacts:
    if config.data not in DATA:
        raise ValueError(f"the cost on {config.data!r} cannot be told; it is known for {', '.join(DATA)}")
    return DATA[config.data]
