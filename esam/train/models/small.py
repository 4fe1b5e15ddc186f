"""Two networks for seconds-long experiments, neither with batch statistics: each sample is computed on its own."""

from collections import OrderedDict

from torch import nn

from esam.train.models.parts import classifier, conv, kaiming_init


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
