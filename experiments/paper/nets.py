"""The paper's nets that the package itself does not name: PyramidNet, and three for ImageNet.

- Residual networks for ImageNet: He et al. (2016, https://arxiv.org/abs/1512.03385), with bottleneck blocks.
- Pyramidal residual networks: Han, Kim & Kim (2017, https://arxiv.org/abs/1610.02915). Each block is a little wider
  than the one before it, instead of doubling the width where the image is halved.
- Vision transformers: Dosovitskiy et al. (2021, https://arxiv.org/abs/2010.11929).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from esam.train import Task
from esam.train.models.convolutional import (
    Residual,
    block_plan,
    check_survives_halvings,
    conv_norm,
    network,
    projected_shortcut,
    zero_channels,
)
from esam.train.models.vit import VisionTransformer


def pyramidnet110(task: Task) -> nn.Module:
    """Return PyramidNet-110 with alpha 270: 28.5 million parameters on CIFAR-10."""
    return pyramidnet(110, 270, **_shape(task))


def pyramidnet8(task: Task) -> nn.Module:
    """Return PyramidNet-8 with alpha 48: one block a stage, 114,906 parameters."""
    return pyramidnet(8, 48, **_shape(task))


def resnet50(task: Task) -> nn.Module:
    """Return ResNet-50."""
    return bottleneck_resnet((3, 4, 6, 3), **_shape(task))


def resnet101(task: Task) -> nn.Module:
    """Return ResNet-101."""
    return bottleneck_resnet((3, 4, 23, 3), **_shape(task))


def vit_s16(task: Task) -> nn.Module:
    """Return ViT-S/16."""
    return VisionTransformer(patch=16, width=384, depth=12, heads=6, **_shape(task))


def small_vit(task: Task) -> nn.Module:
    """Return a vision transformer for 16 x 16: patches of 4, width 64, 4 blocks of 4 heads."""
    return VisionTransformer(patch=4, width=64, depth=4, heads=4, **_shape(task))


def _shape(task: Task) -> dict[str, Any]:
    assert task.shape is not None, "the paper's data are images"
    channels, size, _ = task.shape
    return {"classes": task.class_count(), "channels": channels, "size": size}


class PyramidBlock(nn.Module):
    """BN, conv, BN, ReLU, conv, BN around a shortcut: no ReLU before the first convolution, none after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            *conv_norm(inputs, outputs, stride=stride),
            nn.ReLU(),
            *conv_norm(outputs, outputs),
        )
        # ceil_mode: an odd image shrinks to the same size as under the strided convolution.
        shrink = nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)
        self.shortcut = nn.Sequential(shrink, zero_channels(outputs - inputs))

    def forward(self, images: Tensor) -> Tensor:
        """Return body + shortcut."""
        total: Tensor = self.body(images) + self.shortcut(images)
        return total


def pyramidnet(depth: int, alpha: int, *, classes: int, channels: int, size: int) -> nn.Sequential:
    """PyramidNet of basic blocks, whose width grows linearly from 16 at the stem to 16 + alpha at the end."""
    assert depth % 6 == 2, depth
    check_survives_halvings(size, 2)
    n = depth // 6
    # Rounded as in the authors' code; the paper's formula rounds down, which is the same for alpha = 270.
    widths = [round(16 + alpha * block / (3 * n)) for block in range(1, 3 * n + 1)]
    blocks = [PyramidBlock(*shape) for shape in block_plan(16, [widths[:n], widths[n : 2 * n], widths[2 * n :]])]
    return network(nn.Sequential(*conv_norm(channels, 16)), blocks, widths[-1], classes, norm=True)


def bottleneck_body(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A 3x3 convolution at a quarter of the width, between two 1x1 convolutions."""
    inner = outputs // 4
    return nn.Sequential(
        *conv_norm(inputs, inner, 1),
        nn.ReLU(),
        # The stride sits here, not in the 1x1 before as in the paper: the "v1.5" that today's ImageNet results mean.
        *conv_norm(inner, inner, stride=stride),
        nn.ReLU(),
        *conv_norm(inner, outputs, 1),
    )


def imagenet_stem(channels: int, width: int) -> nn.Sequential:
    """A 7x7 convolution and a max-pool, which quarter the image."""
    return nn.Sequential(*conv_norm(channels, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))


def bottleneck_resnet(depths: tuple[int, int, int, int], *, classes: int, channels: int, size: int) -> nn.Sequential:
    """The ImageNet network with this many bottleneck blocks in its four stages."""
    check_survives_halvings(size, 5)
    stages = [[width] * depth for width, depth in zip((256, 512, 1024, 2048), depths, strict=True)]
    blocks = [Residual(bottleneck_body(*shape), projected_shortcut(*shape)) for shape in block_plan(64, stages)]
    return network(imagenet_stem(channels, 64), blocks, 2048, classes, norm=False)
