"""Residual networks of He et al. (2016, https://arxiv.org/abs/1512.03385), for small images and for ImageNet.

Three families share one residual block: the thin 6n+2 networks for CIFAR (resnet8, 14, 20), the CIFAR variant of
ResNet-18 on which SAM and ESAM report, and the bottleneck networks for ImageNet (resnet50, 101).
"""

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from esam.train.models.parts import (
    ZeroPadChannels,
    block_plan,
    check_survives_halvings,
    classifier,
    conv,
    kaiming_init,
)


class Residual(nn.Module):
    """Add what the body computes to what the shortcut carries past it, then rectify."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        """Take two modules whose outputs have the same shape."""
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, images: Tensor) -> Tensor:
        """Return relu(body + shortcut)."""
        return F.relu(self.body(images) + self.shortcut(images))


def basic_body(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Two 3x3 convolutions."""
    return nn.Sequential(
        conv(inputs, outputs, stride=stride),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        conv(outputs, outputs),
        nn.BatchNorm2d(outputs),
    )


def bottleneck_body(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A 3x3 convolution at a quarter of the width, between two 1x1 convolutions."""
    inner = outputs // 4
    return nn.Sequential(
        conv(inputs, inner, 1),
        nn.BatchNorm2d(inner),
        nn.ReLU(),
        # The stride sits here, not in the 1x1 before as in the paper: the "v1.5" that today's ImageNet results mean.
        conv(inner, inner, stride=stride),
        nn.BatchNorm2d(inner),
        nn.ReLU(),
        conv(inner, outputs, 1),
        nn.BatchNorm2d(outputs),
    )


def padded_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option A of the paper: take every second pixel and pad with zero channels; no parameters."""
    if inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.AvgPool2d(1, stride=stride), ZeroPadChannels(outputs - inputs))


def projected_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option B of the paper: a 1x1 convolution, only where the shape changes."""
    if inputs == outputs:
        return nn.Identity()
    return nn.Sequential(conv(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))


def small_image_stem(channels: int, width: int) -> nn.Sequential:
    """One 3x3 convolution that keeps every pixel."""
    return nn.Sequential(conv(channels, width), nn.BatchNorm2d(width), nn.ReLU())


def imagenet_stem(channels: int, width: int) -> nn.Sequential:
    """A 7x7 convolution and a max-pool, which quarter the image."""
    return nn.Sequential(
        conv(channels, width, 7, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def network(stem: nn.Sequential, blocks: list[Residual], head: nn.Sequential) -> nn.Sequential:
    """Chain the three parts, freshly initialised."""
    model = nn.Sequential(OrderedDict(stem=stem, blocks=nn.Sequential(*blocks), head=head))
    kaiming_init(model)
    return model


def thin_resnet(depth: int, *, classes: int, channels: int, size: int) -> nn.Sequential:
    """The 6n+2 layer network for CIFAR: three stages of n basic blocks, 16, 32 and 64 wide."""
    assert depth % 6 == 2, depth
    check_survives_halvings(size, 2)
    n = depth // 6
    stages = [[16] * n, [32] * n, [64] * n]
    blocks = [Residual(basic_body(*shape), padded_shortcut(*shape)) for shape in block_plan(16, stages)]
    return network(small_image_stem(channels, 16), blocks, classifier(64, classes))


def resnet18(*, classes: int, channels: int, size: int) -> nn.Sequential:
    """ResNet-18 with a stem for small images: 3x3 and no max-pool."""
    check_survives_halvings(size, 3)
    stages = [[64] * 2, [128] * 2, [256] * 2, [512] * 2]
    blocks = [Residual(basic_body(*shape), projected_shortcut(*shape)) for shape in block_plan(64, stages)]
    return network(small_image_stem(channels, 64), blocks, classifier(512, classes))


def bottleneck_resnet(depths: tuple[int, int, int, int], *, classes: int, channels: int, size: int) -> nn.Sequential:
    """The ImageNet network with this many bottleneck blocks in its four stages."""
    check_survives_halvings(size, 5)
    stages = [[width] * depth for width, depth in zip((256, 512, 1024, 2048), depths, strict=True)]
    blocks = [Residual(bottleneck_body(*shape), projected_shortcut(*shape)) for shape in block_plan(64, stages)]
    return network(imagenet_stem(channels, 64), blocks, classifier(2048, classes))
