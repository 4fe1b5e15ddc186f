"""Which random generator belongs to a purpose, a seed, an epoch and a batch?"""

from __future__ import annotations

import hashlib

import torch


def generator_for(*key: str | int) -> torch.Generator:
    """Give a fresh CPU generator that depends on ``key`` alone, never on the global generator or on earlier draws.

    The key is hashed because neighbouring seeds, such as (seed 0, epoch 1) and (seed 1, epoch 0), must not meet.
    """
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
