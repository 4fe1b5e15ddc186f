"""Which network is trained? Those on which SAM is usually reported, and small ones of the same families for a CPU."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from esam.extras import require
from esam.train.config import check_known, did_you_mean
from esam.train.models.convolutional import cnn, mlp, resnet18, thin_resnet, wide_resnet
from esam.train.models.vit import VisionTransformer

__all__ = ["MODELS", "Model", "build_model", "fastest_memory_format"]


@dataclass(frozen=True)
class Model:
    """A row of the registry."""

    build: Callable[..., nn.Module]
    """Takes classes, channels and size by keyword."""
    summary: str


MODELS: dict[str, Model] = {
    "resnet18": Model(resnet18, "ResNet-18 with a stem for small images"),
    "wrn28-10": Model(partial(wide_resnet, 28, 10), "Wide ResNet-28-10"),
    "resnet8": Model(partial(thin_resnet, 8), "the 6n+2 CIFAR ResNet with n = 1"),
    "resnet14": Model(partial(thin_resnet, 14), "the 6n+2 CIFAR ResNet with n = 2"),
    "resnet20": Model(partial(thin_resnet, 20), "the 6n+2 CIFAR ResNet with n = 3"),
    "wrn10-1": Model(partial(wide_resnet, 10, 1), "Wide ResNet-10-1: one block per stage"),
    "vit-tiny": Model(
        partial(VisionTransformer, patch=4, width=192, depth=6, heads=3),
        "ViT for 32x32: patch 4, width 192, depth 6, 3 heads",
    ),
    "cnn": Model(cnn, "three convolutions with GroupNorm; for 8x8 digits or 32x32 photos"),
    "mlp": Model(mlp, "two hidden layers of 256 units on the flattened image"),
}


def build_model(name: str, *, classes: int, channels: int = 3, size: int = 32) -> nn.Module:
    """A new network, its weights drawn from PyTorch's global random state: torch.manual_seed decides them.

    `name` is a key of MODELS, or timm/NAME for a network of the timm library. The network maps (batch, channels, size,
    size) to (batch, classes) scores before the softmax.
    """
    if name.startswith("timm/"):
        return _build_timm(name.removeprefix("timm/"), classes, channels)
    check_known("model", name, [*MODELS, "timm/NAME"])
    return MODELS[name].build(classes=classes, channels=channels, size=size)


def fastest_memory_format(model: nn.Module) -> torch.memory_format:
    """The layout in which this network and its images train fastest: channels_last if it convolves images."""
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return torch.channels_last if convolves else torch.contiguous_format


def _build_timm(name: str, classes: int, channels: int) -> nn.Module:
    require("timm", purpose=f"timm/{name}")
    timm = importlib.import_module("timm")  # here, not above: an optional package, slow to import
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models())
        raise ValueError(f"there is no model 'timm/{name}'.{hint} timm.list_models() gives every name timm/NAME takes.")
    model: nn.Module = timm.create_model(name, num_classes=classes, in_chans=channels)
    return model
