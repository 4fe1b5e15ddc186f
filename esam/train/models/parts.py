"""What do the convolutional networks of this room have in common?

A plan of residual blocks, a bias-free convolution, a classifying head, the initialisation of He et al. (2015,
https://arxiv.org/abs/1502.01852), and the smallest image that survives the halvings.
"""

from collections.abc import Iterable, Iterator

import torch.nn.functional as F
from torch import Tensor, nn


def conv(inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image size at stride 1; no bias, because a norm layer stands beside it."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def block_plan(stem_width: int, stages: Iterable[Iterable[int]]) -> Iterator[tuple[int, int, int]]:
    """Yield (inputs, outputs, stride) of every block, given the output width of each block of each stage.

    The first block of every stage but the first halves the image.
    """
    inputs = stem_width
    for stage, widths in enumerate(stages):
        for index, outputs in enumerate(widths):
            yield inputs, outputs, 2 if stage > 0 and index == 0 else 1
            inputs = outputs


class ZeroPadChannels(nn.Module):
    """Append channels of zeros: a wider identity that has no parameters."""

    def __init__(self, extra: int) -> None:
        """Take the number of channels to append."""
        super().__init__()
        self.extra = extra

    def forward(self, images: Tensor) -> Tensor:
        """Return the images with the zeros behind their own channels."""
        return F.pad(images, (0, 0, 0, 0, 0, self.extra))


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
