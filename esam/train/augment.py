"""How does a batch of images vary from one epoch to the next?

Every augmentation takes raw images ``(N, C, H, W)``, a generator, and which rows of their batch these are, and gives
images of the same shape. Draws are made on the CPU and for the whole batch, so that every device and every rank sees
what one process would. Batches that are ``channels_last`` in memory are the fast case.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from .distributed import Rows

Augmentation = Callable[[Tensor, torch.Generator, Rows], Tensor]

BOX_AREA = (0.08, 1.0)  # Szegedy et al. 2015, "Going deeper with convolutions", section 6
BOX_ASPECT = (3 / 4, 4 / 3)
BOX_ATTEMPTS = 10


def shift(images: Tensor, generator: torch.Generator, rows: Rows) -> Tensor:
    """Pad with black, crop at random; for pictures whose mirror image means something else, such as digits.

    The padding is an eighth of the shorter side: the usual 4 at 32, and 1 at 8.
    """
    pad = min(images.shape[2:]) // 8
    top, left = draw_shifts(rows.batch_size, pad, generator)
    return shifted(images, top[rows.index], left[rows.index], pad)


def basic(images: Tensor, generator: torch.Generator, rows: Rows) -> Tensor:
    """Mirror every other image at random, then pad with black and crop at random."""
    flips = draw_flips(rows.batch_size, generator)
    return shift(flipped(images, flips[rows.index]), generator, rows)


def inception(images: Tensor, generator: torch.Generator, rows: Rows) -> Tensor:
    """Enlarge a random box of 8 to 100 % of the area, aspect 3/4 to 4/3, to the whole image; mirror at random."""
    height, width = images.shape[2:]
    boxes = draw_boxes(rows.batch_size, height, width, generator)
    flips = draw_flips(rows.batch_size, generator)
    return resized_crops(images, boxes[rows.index], flips[rows.index])


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": lambda images, *_: images,
    "shift": shift,
    "basic": basic,
    "inception": inception,
}


def draw_shifts(count: int, pad: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw where each crop starts in its padded image: top and left, each uniform in 0..2*pad."""
    top, left = torch.randint(0, 2 * pad + 1, (2, count), generator=generator)
    return top, left


def draw_flips(count: int, generator: torch.Generator) -> Tensor:
    """Draw which images are mirrored, each with probability one half."""
    return torch.rand(count, generator=generator) < 0.5


def draw_boxes(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw one box inside each image: (count, 4) rows of top, left, height, width in (fractional) pixels.

    Area is uniform in 8..100 %, the logarithm of width / height uniform between 3/4 and 4/3. A box that does not fit is
    drawn anew, ten times at most; then the largest central box of an allowed aspect is taken.
    """
    area, aspect, top, left = torch.rand(4, BOX_ATTEMPTS, count, generator=generator)
    area = height * width * (BOX_AREA[0] + area * (BOX_AREA[1] - BOX_AREA[0]))
    low, high = math.log(BOX_ASPECT[0]), math.log(BOX_ASPECT[1])
    aspect = torch.exp(low + aspect * (high - low))
    box_height, box_width = torch.sqrt(area / aspect), torch.sqrt(area * aspect)
    fits = (box_height <= height) & (box_width <= width)
    first = fits.to(torch.uint8).argmax(dim=0, keepdim=True)  # argmax gives the first of equals
    drawn = torch.stack([top * (height - box_height), left * (width - box_width), box_height, box_width])
    drawn = drawn.gather(1, first.expand(4, 1, count)).squeeze(1).T
    tallest, widest = min(height, width / BOX_ASPECT[0]), min(width, height * BOX_ASPECT[1])
    central = drawn.new_tensor([(height - tallest) / 2, (width - widest) / 2, tallest, widest])
    return torch.where(fits.any(dim=0)[:, None], drawn, central)


def shifted(images: Tensor, top: Tensor, left: Tensor, pad: int) -> Tensor:
    """Crop each image, padded with ``pad`` black pixels all round, at its own (top, left)."""
    count, channels, height, width = images.shape
    inside = images.permute(0, 2, 3, 1).contiguous()  # a view, without a copy, of images that are channels_last
    padded = functional.pad(inside, (0, 0, pad, pad, pad, pad)).view(-1)
    # A row of a crop is one run of width * channels values in the padded memory, so the crop is a gather of runs:
    # index_select copies each run at once, some ten times faster than a gather of pixels.
    run = width * channels
    runs = padded.as_strided((padded.numel() - run + 1, run), (1, 1))
    device = images.device
    row = torch.arange(count, device=device)[:, None] * (height + 2 * pad) + torch.arange(height, device=device)
    start = ((row + top.to(device)[:, None]) * (width + 2 * pad) + left.to(device)[:, None]) * channels
    return runs.index_select(0, start.view(-1)).view(count, height, width, channels).permute(0, 3, 1, 2)


def flipped(images: Tensor, flips: Tensor) -> Tensor:
    """Mirror, left to right, the images marked in ``flips``."""
    return torch.where(flips.to(images.device)[:, None, None, None], images.flip(3), images)


def resized_crops(images: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
    """Enlarge each image's box (top, left, height, width) to the whole image, bilinearly; mirror where marked.

    A box is never larger than the image, so this never shrinks and needs no smoothing against aliasing.
    """
    height, width = images.shape[2:]
    top, left, box_height, box_width = boxes.to(images.device, torch.float32).T
    direction, zero = 1.0 - 2.0 * flips.to(images.device, torch.float32), torch.zeros_like(top)
    # grid_sample's coordinates: -1 and 1 are the outer edges of the image
    x = torch.stack([direction * box_width / width, zero, (2 * left + box_width) / width - 1], dim=1)
    y = torch.stack([zero, box_height / height, (2 * top + box_height) / height - 1], dim=1)
    grid = functional.affine_grid(torch.stack([x, y], dim=1), list(images.shape), align_corners=False)
    return functional.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
