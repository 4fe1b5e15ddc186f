"""Which nets are trained? Four small ones, and a pretrained one."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import folder


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut without weights: every second pixel, channels padded with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body + shortcut)."""
        past = x
        if self.padding:
            past = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding // 2, self.padding // 2))
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + past)


class ResNet(nn.Module):
    """The 6n + 2 layers of He et al. (2016) for small images."""

    def __init__(self, n: int, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        stages, inputs = [], width
        for stage in range(3):
            blocks = []
            for number in range(n):
                blocks.append(Residual(inputs, width * 2**stage, 2 if stage and not number else 1))
                inputs = width * 2**stage
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3 = stages
        self.linear = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score a class for each image."""
        x = F.relu(self.bn1(self.conv1(images.contiguous(memory_format=torch.channels_last))))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def resnet(n: int, width: int, classes: int) -> nn.Module:
    """Return a new ResNet in the memory format that is fastest on a CPU."""
    return ResNet(n, width, classes).to(memory_format=torch.channels_last)


def pretrained_resnet20(classes: int) -> nn.Module:
    """Return the ResNet-20 of Y. Idelbayev, trained on CIFAR-10, with a new last layer unless it has 10 classes."""
    with np.load(folder() / "resnet20_cifar10.npz") as arrays:
        weights = {name: torch.tensor(arrays[name]) for name in arrays.files}
    net = ResNet(3, 16, 10)
    net.load_state_dict(weights)
    if classes != 10:
        net.linear = nn.Linear(64, classes)
    return net.to(memory_format=torch.channels_last)


class Block(nn.Module):
    """Attention and a perceptron, normed before and added to their input."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        queries, keys, values = self.read(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)
        x = x + self.mix(read.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A small transformer over characters (causal: scores for the next one) or over patches of an image."""

    def __init__(self, embed: nn.Module, tokens: int, width: int, depth: int, classes: int, *, causal: bool) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 4, causal) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.causal = causal
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scores: for each token if causal, else for each image."""
        tokens = self.embed(inputs)
        tokens = tokens.flatten(2).transpose(1, 2) if tokens.dim() == 4 else tokens
        x = self.norm(self.blocks(tokens + self.positions))
        return self.head(x if self.causal else x.mean(1))


def vit(classes: int) -> nn.Module:
    """Return a ViT for images of 16 x 16: 16 patches, width 96, depth 4."""
    return Transformer(nn.Conv2d(3, 96, 4, 4), 16, 96, 4, classes, causal=False)


def gpt(characters: int, length: int) -> nn.Module:
    """Return a character-level GPT: width 96, depth 3."""
    return Transformer(nn.Embedding(characters, 96), length, 96, 3, characters, causal=True)


class AirNet(nn.Module):
    """The net of airbench94 (K. Jordan) at half its width, for 32 x 32: three pairs of convolutions with pooling.

    As there: a first layer that whitens patches of 2 x 2 and is not trained, convolutions that begin as the identity,
    BatchNorm without weights and with a short memory, scores divided by 9.
    """

    def __init__(self, classes: int, widths: tuple[int, int, int] = (32, 128, 128)) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 2, bias=False).requires_grad_(False)
        layers: list[nn.Module] = [nn.GELU()]
        inputs = 24
        for width in widths:
            layers += [conv3x3(inputs, width), nn.MaxPool2d(2), short_norm(width), nn.GELU()]
            layers += [conv3x3(width, width), short_norm(width), nn.GELU()]
            inputs = width
        self.body, self.linear = nn.Sequential(*layers), nn.Linear(inputs, classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score a class for each image."""
        x = self.body(self.first(images.contiguous(memory_format=torch.channels_last)))
        return self.linear(x.amax((2, 3))) / 9

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Set the first layer to the principal directions of these images' patches, each with both signs."""
        patches = F.unfold(images, 2).transpose(1, 2).reshape(-1, 12)
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / (values + 5e-4).sqrt()).T.view(12, 3, 2, 2)
        self.first.weight.copy_(torch.cat([filters, -filters]))


def conv3x3(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a convolution that begins by handing its channels on."""
    conv = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
    nn.init.dirac_(conv.weight.detach()[:inputs])
    return conv


def short_norm(width: int) -> nn.BatchNorm2d:
    """Return a BatchNorm without weights, whose running statistics follow within a few steps."""
    norm = nn.BatchNorm2d(width, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm


def air(classes: int) -> nn.Module:
    """Return the net of the full-size task."""
    return AirNet(classes).to(memory_format=torch.channels_last)
