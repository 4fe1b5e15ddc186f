"""Vision transformers of Dosovitskiy et al. (2021, https://arxiv.org/abs/2010.11929).

Pre-norm blocks, GELU, a class token, learned position embeddings; no dropout.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INIT_STD = 0.02  # of weights, class token and positions, as in the original and in DeiT
NORM_EPS = 1e-6  # the original's; PyTorch's default is ten times larger


class Attention(nn.Module):
    """Let every token read from every other token of its own image."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        split = self.queries_keys_values(tokens).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)
        read = F.scaled_dot_product_attention(queries, keys, values)
        mixed: Tensor = self.mix(read.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention, then a two-layer perceptron on each token; both are normed before and added to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(width, eps=NORM_EPS), Attention(width, heads))
        self.think = nn.Sequential(
            nn.LayerNorm(width, eps=NORM_EPS), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        tokens = tokens + self.attend(tokens)
        tokens = tokens + self.think(tokens)
        return tokens


class VisionTransformer(nn.Module):
    """Cut the image into patches, let them exchange information, and classify by the class token."""

    def __init__(
        self, *, patch: int, width: int, depth: int, heads: int, classes: int, channels: int, size: int
    ) -> None:
        super().__init__()
        if size % patch:
            raise ValueError(
                f"size must be a multiple of the patch of {patch} pixels, got {size}; "
                f"resize or pad the images to {size + patch - size % patch}"
            )
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width, eps=NORM_EPS), nn.Linear(width, classes))
        self._init_weights()

    def _init_weights(self) -> None:
        for weight in (self.class_token, self.positions):
            nn.init.trunc_normal_(weight, std=INIT_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=INIT_STD)
                nn.init.zeros_(module.bias)
        # By fan-in, as in the original: INIT_STD suits 16x16 patches, but would drown 4x4 patches in their positions.
        nn.init.trunc_normal_(self.patches.weight, std=self.patches.weight[0].numel() ** -0.5)
        assert self.patches.bias is not None
        nn.init.zeros_(self.patches.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per class for each image."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1) + self.positions
        scores: Tensor = self.head(self.blocks(tokens)[:, 0])
        return scores
