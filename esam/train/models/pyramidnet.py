"""Pyramidal residual networks of Han, Kim & Kim (2017, https://arxiv.org/abs/1610.02915).

Each block is a little wider than the one before it, instead of doubling the width where the image is halved.
"""

from collections import OrderedDict

from torch import Tensor, nn

from esam.train.models.parts import (
    ZeroPadChannels,
    block_plan,
    check_survives_halvings,
    classifier,
    conv,
    kaiming_init,
)


class PyramidBlock(nn.Module):
    """BN, conv, BN, ReLU, conv, BN around a shortcut: no ReLU before the first convolution, none after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Take the widths before and after, and the stride of the first convolution."""
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            conv(inputs, outputs, stride=stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            conv(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        # ceil_mode: an odd image shrinks to the same size as under the strided convolution.
        shrink = nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)
        self.shortcut = nn.Sequential(shrink, ZeroPadChannels(outputs - inputs))

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
    model = nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(conv(channels, 16), nn.BatchNorm2d(16)),
            blocks=nn.Sequential(*blocks),
            activate=nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU()),
            head=classifier(widths[-1], classes),
        )
    )
    kaiming_init(model)
    return model
