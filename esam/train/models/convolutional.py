"""Convolutional networks for small images: ResNet and Wide ResNet, and small ones for seconds.

- Residual networks: He et al. (2016, https://arxiv.org/abs/1512.03385). The thin 6n+2 networks for CIFAR (resnet8, 14,
  20), and the CIFAR variant of ResNet-18 on which SAM and ESAM report.
- Wide residual networks: Zagoruyko & Komodakis (2016, https://arxiv.org/abs/1605.07146). Few layers, many channels, and
  the norm and ReLU come before each convolution ("pre-activation"). No dropout.

All are initialised as in He et al. (2015, https://arxiv.org/abs/1502.01852).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import torch.nn.functional as F
from torch import Tensor, nn


def conv(inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image size at stride 1; no bias, because a norm layer stands beside it."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def conv_norm(inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """A convolution and its norm."""
    return conv(inputs, outputs, kernel, stride=stride), nn.BatchNorm2d(outputs)


def block_plan(stem_width: int, stages: Iterable[Iterable[int]]) -> Iterator[tuple[int, int, int]]:
    """Yield (inputs, outputs, stride) of every block, given the output width of each block of each stage.

    The first block of every stage but the first halves the image.
    """
    inputs = stem_width
    for stage, widths in enumerate(stages):
        for index, outputs in enumerate(widths):
            yield inputs, outputs, 2 if stage > 0 and index == 0 else 1
            inputs = outputs


def zero_channels(extra: int) -> nn.Module:
    """Append channels of zeros: a wider identity that has no parameters."""
    return nn.ConstantPad3d((0, 0, 0, 0, 0, extra), 0.0)


def classifier(width: int, classes: int) -> nn.Sequential:
    """Average each channel over the image and map the averages to one score per class."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def kaiming_init(model: nn.Module) -> None:
    """Draw every convolution from N(0, 2 / fan_out), the scale that keeps gradients level through ReLUs."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def check_survives_halvings(size: int, halvings: int) -> None:
    """Refuse images that shrink to a single pixel.

    One pixel would still convolve, but BatchNorm then has a single value per channel when a batch holds one sample: the
    last batch of an epoch, or a strict ESAM selection, would crash a run that began well.
    """
    smallest = 2**halvings + 1
    if size < smallest:
        raise ValueError(
            f"size must be at least {smallest} for a network that halves the image {halvings} times, got {size}; "
            "enlarge the images, or choose a network that halves less often: "
            "wrn10-1 and resnet8 (2 times), resnet18 (3 times), cnn or mlp (any size from 4 or 1)"
        )


# ResNet ---------------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Add what the body computes to what the shortcut carries past it, then rectify."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, images: Tensor) -> Tensor:
        """Return relu(body + shortcut)."""
        return F.relu(self.body(images) + self.shortcut(images))


def basic_body(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Two 3x3 convolutions."""
    return nn.Sequential(*conv_norm(inputs, outputs, stride=stride), nn.ReLU(), *conv_norm(outputs, outputs))


def padded_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option A of the paper: take every second pixel and pad with zero channels; no parameters."""
    if inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.AvgPool2d(1, stride=stride), zero_channels(outputs - inputs))


def projected_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option B of the paper: a 1x1 convolution, only where the shape changes."""
    if inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*conv_norm(inputs, outputs, 1, stride=stride))


def small_image_stem(channels: int, width: int) -> nn.Sequential:
    """One 3x3 convolution that keeps every pixel."""
    return nn.Sequential(*conv_norm(channels, width), nn.ReLU())


def network(stem: nn.Module, blocks: Iterable[nn.Module], width: int, classes: int, *, norm: bool) -> nn.Sequential:
    """Chain stem, blocks and classifier, freshly initialised; with ``norm``, a norm and a ReLU follow the blocks."""
    after = {"activate": nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())} if norm else {}
    parts = {"stem": stem, "blocks": nn.Sequential(*blocks), **after, "head": classifier(width, classes)}
    model = nn.Sequential(OrderedDict(parts))
    kaiming_init(model)
    return model


def thin_resnet(depth: int, *, classes: int, channels: int, size: int) -> nn.Sequential:
    """The 6n+2 layer network for CIFAR: three stages of n basic blocks, 16, 32 and 64 wide."""
    assert depth % 6 == 2, depth
    check_survives_halvings(size, 2)
    n = depth // 6
    stages = [[16] * n, [32] * n, [64] * n]
    blocks = [Residual(basic_body(*shape), padded_shortcut(*shape)) for shape in block_plan(16, stages)]
    return network(small_image_stem(channels, 16), blocks, 64, classes, norm=False)


def resnet18(*, classes: int, channels: int, size: int) -> nn.Sequential:
    """ResNet-18 with a stem for small images: 3x3 and no max-pool."""
    check_survives_halvings(size, 3)
    stages = [[64] * 2, [128] * 2, [256] * 2, [512] * 2]
    blocks = [Residual(basic_body(*shape), projected_shortcut(*shape)) for shape in block_plan(64, stages)]
    return network(small_image_stem(channels, 64), blocks, 512, classes, norm=False)


# Wide ResNet ----------------------------------------------------------------------------------------------------------


class WideBlock(nn.Module):
    """Norm and ReLU, then two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.activate = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.body = nn.Sequential(*conv_norm(inputs, outputs, stride=stride), nn.ReLU(), conv(outputs, outputs))
        self.project = None if inputs == outputs else conv(inputs, outputs, 1, stride=stride)

    def forward(self, images: Tensor) -> Tensor:
        """Return body + shortcut; a projecting shortcut starts after the activation, an identity before it."""
        activated = self.activate(images)
        shortcut = images if self.project is None else self.project(activated)
        total: Tensor = shortcut + self.body(activated)
        return total


def wide_resnet(depth: int, widen: int, *, classes: int, channels: int, size: int) -> nn.Sequential:
    """WRN-depth-widen: three stages of (depth - 4) / 6 blocks, 16, 32 and 64 times `widen` wide."""
    assert depth % 6 == 4, depth
    check_survives_halvings(size, 2)
    stages = [[width * widen] * (depth // 6) for width in (16, 32, 64)]
    blocks = [WideBlock(*shape) for shape in block_plan(16, stages)]
    return network(conv(channels, 16), blocks, 64 * widen, classes, norm=True)


# Small ones, without batch statistics: each sample is computed on its own ---------------------------------------------


def cnn(*, classes: int, channels: int, size: int) -> nn.Sequential:
    """Three 3x3 convolutions with GroupNorm, 32, 64 and 128 wide, and a max-pool after each of the first two."""
    if size < 4:
        raise ValueError(f"size must be at least 4 for cnn, which halves the image twice, got {size}; use mlp")

    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [conv(inputs, outputs), nn.GroupNorm(8, outputs), nn.ReLU()]

    features = nn.Sequential(*layer(channels, 32), nn.MaxPool2d(2), *layer(32, 64), nn.MaxPool2d(2), *layer(64, 128))
    model = nn.Sequential(OrderedDict(features=features, head=classifier(128, classes)))
    kaiming_init(model)
    return model


def mlp(*, classes: int, channels: int, size: int) -> nn.Sequential:
    """Flatten the image and pass it through two hidden layers of 256 units, with PyTorch's own initialisation."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * size * size, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, classes),
    )
