"""Wide residual networks of Zagoruyko & Komodakis (2016, https://arxiv.org/abs/1605.07146).

Few layers, many channels, and the norm and ReLU come before each convolution ("pre-activation"). No dropout.
"""

from collections import OrderedDict

from torch import Tensor, nn

from esam.train.models.parts import block_plan, check_survives_halvings, classifier, conv, kaiming_init


class WideBlock(nn.Module):
    """Norm and ReLU, then two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Take the widths before and after; where they differ the shortcut is a 1x1 convolution."""
        super().__init__()
        self.activate = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.body = nn.Sequential(
            conv(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs), nn.ReLU(), conv(outputs, outputs)
        )
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
    width = stages[-1][-1]
    model = nn.Sequential(
        OrderedDict(
            stem=conv(channels, 16),
            blocks=nn.Sequential(*blocks),
            activate=nn.Sequential(nn.BatchNorm2d(width), nn.ReLU()),
            head=classifier(width, classes),
        )
    )
    kaiming_init(model)
    return model
