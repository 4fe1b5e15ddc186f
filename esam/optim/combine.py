"""How are gradients of different points mixed? Pure functions over the whole gradient, keyed by the tensors' places."""

from __future__ import annotations

import torch

from .ascent import usable, whole_norm
from .passes import Gradients


def orthogonal_part(gradient: Gradients, direction: Gradients) -> Gradients:
    """Return the part of the whole gradient orthogonal to ``direction``; empty where either is zero or not finite."""
    length = whole_norm(list(direction.values()))
    if not usable(length) or not usable(whole_norm(list(gradient.values()))):
        return {}
    products = [(gradient[n] * direction[n].conj()).real.sum(dtype=torch.float64) for n in gradient if n in direction]
    along = sum(torch.stack([p.to(products[0].device) for p in products]).tolist()) / length**2 if products else 0.0
    return {n: g - along * direction[n] if n in direction else g.clone() for n, g in gradient.items()}


def add_to_length(gradient: Gradients, part: Gradients, share: float) -> None:
    """Add ``part``, scaled to ``share`` times the gradient's own length, to the gradient in place."""
    common = [n for n in gradient if n in part]
    length, own = whole_norm(list(gradient.values())), whole_norm([part[n] for n in common])
    if usable(length) and usable(own):
        torch._foreach_add_([gradient[n] for n in common], [part[n] for n in common], alpha=share * length / own)
