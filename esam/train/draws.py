"""What is drawn at random: which labels are made wrong, which samples are taken or held out, and from which seed?"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

HELD_OUT_SHARE = 0.2


def generator_for(*key: str | int) -> torch.Generator:
    """Give a fresh CPU generator that depends on ``key`` alone, never on the global generator or on earlier draws.

    The key is hashed because neighbouring seeds, such as (seed 0, epoch 1) and (seed 1, epoch 0), must not meet.
    """
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def flip_labels(labels: Tensor, share: float, *, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Make exactly ``round(share * N)`` labels wrong; gives the labels and a mask of which are wrong.

    A wrong label is any other class, uniformly. The same seed gives the same errors.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"label_noise is a share and must be in [0, 1], got {share}; for 20 % write 0.2")
    if share > 0 and classes < 2:
        raise ValueError(f"a label can only be wrong among 2 or more classes, got {classes}; use label_noise=0")
    generator = generator_for("label noise", seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    # A step of 1..classes-1 round the circle of classes reaches each other class equally often, and never its own.
    steps = torch.randint(1, max(classes, 2), chosen.shape, generator=generator)
    noisy = labels.clone()
    noisy[chosen] = (labels[chosen] + steps) % classes
    wrong = torch.zeros(len(labels), dtype=torch.bool)
    wrong[chosen] = True
    return noisy, wrong


def balanced_subset(labels: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """Pick ``count`` samples at random with all classes equally often; gives their positions, ascending.

    A class with too few samples gives all it has and the others fill up. For one seed, smaller subsets lie inside
    larger ones.
    """
    if not 1 <= count <= len(labels):
        raise ValueError(f"train_size must be in 1..{len(labels)}, the number of training images, got {count}")
    shuffled, rank = _rank_within_class(labels, generator_for("subset", seed))
    return shuffled[rank.argsort(stable=True)][:count].sort().values


def held_out(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Hold out a fifth of the samples, every class in proportion; gives the positions kept and those held out.

    The draw is fixed: a test set must not change with the seed of a run.
    """
    if len(labels) < 2:
        raise ValueError(f"holding out test images takes at least 2 images, got {len(labels)}")
    shuffled, rank = _rank_within_class(labels, generator_for("held out"))
    counts = labels.bincount()[labels[shuffled]]
    by_depth = shuffled[((rank + 0.5) / counts).argsort(stable=True)]
    count = max(1, round(HELD_OUT_SHARE * len(labels)))
    return by_depth[count:].sort().values, by_depth[:count].sort().values


def _rank_within_class(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shuffle the samples; gives their positions in that order and how many of its class came before each."""
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = labels[shuffled].argsort(stable=True)
    counts = labels.bincount()
    first = counts.cumsum(0) - counts
    rank = torch.empty_like(shuffled)
    rank[by_class] = torch.arange(len(labels)) - first[labels[shuffled][by_class]]
    return shuffled, rank
