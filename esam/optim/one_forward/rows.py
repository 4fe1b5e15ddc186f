"""How are the rows of the kept samples picked from tensors that hold the whole batch?"""

from __future__ import annotations

import torch
from torch import Tensor

LARGE_ROW = 16 * 1024
"""Bytes from which on rows are copied one by one: slower to say, but without a copy in between."""


class Kept:
    """Where the rows go: to the first places, so that about half of them stand there already and the others move up."""

    def __init__(self, keep: Tensor, size: int) -> None:
        """Take ascending indices, and the number of samples in the batch."""
        self.size, self.count = size, len(keep)
        chosen = torch.zeros(size, dtype=torch.bool, device=keep.device)
        chosen[keep] = True
        self.free = (~chosen[: self.count]).nonzero().flatten()
        self.moving = chosen[self.count :].nonzero().flatten() + self.count
        self.order = torch.arange(self.count, device=keep.device)
        """Which sample stands at each place in the end."""
        self.order[self.free] = self.moving
        self._pairs = list(zip(self.free.tolist(), self.moving.tolist(), strict=True)) if keep.is_cpu else []

    def rows_of(self, tensor: Tensor, like: Tensor, *, in_place: bool) -> Tensor:
        """Return the kept samples' part of a tensor; ``like`` has its shape. In place: the tensor is spent by it."""
        differ = [d for d in range(tensor.dim()) if tensor.shape[d] != like.shape[d]]
        if not differ:  # a weight, or all samples
            return tensor
        each, rest = divmod(tensor.shape[differ[0]], self.size)
        if len(differ) != 1 or rest or like.shape[differ[0]] != each * self.count:
            raise ValueError(f"rows of samples cannot be told in a tensor of shape {tuple(tensor.shape)}")
        dim = differ[0]
        rows: Tensor = tensor.unflatten(dim, (self.size, each))  # type: ignore[no-untyped-call]
        if not in_place:
            return laid_out(rows.index_select(dim, self.order).flatten(dim, dim + 1), like)
        if not len(self.free):
            pass
        elif tensor.is_cpu and tensor.element_size() * tensor.numel() >= LARGE_ROW * self.size:
            views = rows.unbind(dim)
            torch._foreach_copy_([views[a] for a, _ in self._pairs], [views[b] for _, b in self._pairs])
        else:
            rows.index_copy_(dim, self.free, rows.index_select(dim, self.moving))
        return laid_out(tensor.narrow(dim, 0, like.shape[dim]), like)


class Store:
    """Hands out saved tensors one by one, the kept samples' part of each, and lets go of them."""

    def __init__(self, tensors: list[Tensor | None], like: list[Tensor], kept: Kept | None, foreign: set[int]) -> None:
        """Empty the list of tensors as they are taken.

        Args:
            tensors: What was saved of the whole batch.
            like: Tensors of the shapes and strides to hand out.
            kept: The samples; None for all.
            foreign: Addresses of storages that belong to others: what lies in them is copied, not moved.
        """
        self._tensors, self._like, self._kept = tensors, like, kept
        storages = [0 if t is None else t.untyped_storage().data_ptr() for t in tensors]
        self._own = [s not in foreign and storages.count(s) == 1 for s in storages]

    def take(self, i: int) -> Tensor:
        """Return the i-th tensor; once."""
        tensor, self._tensors[i] = self._tensors[i], None
        assert tensor is not None
        if self._kept is None:
            return tensor
        own = self._own[i] and 0 not in tensor.stride()
        return self._kept.rows_of(tensor, self._like[i], in_place=own)


def laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor with the strides of another: a traced graph was made for these."""
    if tensor.stride() == like.stride():
        return tensor
    return torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
