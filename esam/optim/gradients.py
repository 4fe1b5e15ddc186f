"""What is a gradient, as methods compute with it? A list of tensors with ``+ - *``, ``norm`` and ``dot``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


class Gradients:
    """Gradients of some of an optimizer's tensors, each under the tensor's index; a perturbation eps is one too.

    A tensor that a pass did not reach is missing, and counts as zero. Nothing is changed in place, because gradients
    may share memory with one another. Norms and products stay tensors on their device: nothing waits for them.

    >>> g = Gradients([0, 1], [torch.tensor([3.0]), torch.tensor([[4.0]])])
    >>> (g * 2 - g).norm()
    tensor(5.)
    """

    __slots__ = ("fresh", "index", "shared", "sum_over_shards", "tensors")

    def __init__(
        self,
        index: Iterable[int] = (),
        tensors: Iterable[Tensor] = (),
        *,
        shared: bool = True,
        sum_over_shards: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.index, self.tensors = list(index), list(tensors)
        self.fresh = False
        """Whether each tensor has memory of its own; autograd may give two tensors the same."""
        self.shared = shared
        """Whether every rank has the same; False: these are one rank's."""
        self.sum_over_shards = sum_over_shards
        """Adds up what each rank computes from its part of the tensors, where the model is sharded."""

    def like(
        self, index: Iterable[int], tensors: Iterable[Tensor], *, shared: bool | None = None, fresh: bool = False
    ) -> Gradients:
        """Return other tensors of the same model."""
        shared = self.shared if shared is None else shared
        made = Gradients(index, tensors, shared=shared, sum_over_shards=self.sum_over_shards)
        made.fresh = fresh
        return made

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        return zip(self.index, self.tensors, strict=True)

    def __add__(self, other: Gradients) -> Gradients:
        return self.plus(other, 1)

    def __sub__(self, other: Gradients) -> Gradients:
        return self.plus(other, -1)

    def __mul__(self, factor: float | Tensor) -> Gradients:
        if not self.tensors:
            return self
        if isinstance(factor, Tensor) and len({t.device for t in self.tensors}) > 1:  # a model over several devices
            return self.like(self.index, [t * factor.to(t.device) for t in self.tensors], fresh=True)
        return self.like(self.index, torch._foreach_mul(self.tensors, factor), fresh=True)

    __rmul__ = __mul__

    def only(self, wanted: Collection[int]) -> Gradients:
        """Return those of the tensors whose index is wanted."""
        if all(map(wanted.__contains__, self.index)):
            return self
        pairs = [(n, t) for n, t in self if n in wanted]
        return self.like([n for n, _ in pairs], [t for _, t in pairs])

    def without(self, unwanted: Collection[int]) -> Gradients:
        """Return the others."""
        return self.only([n for n in self.index if n not in unwanted]) if unwanted else self

    def norm(self) -> Tensor:
        """Return the l2 norm of all elements."""
        if self.sum_over_shards is None:
            norm: Tensor = torch.linalg.vector_norm(self._own_norms())
            return norm
        return self.sum_over_shards(self._own_norms().square().sum()).sqrt()

    def norms(self) -> Tensor:
        """Return the l2 norm of each tensor, in one vector."""
        norms = self._own_norms()
        return norms if self.sum_over_shards is None else self.sum_over_shards(norms.square()).sqrt()

    def dot(self, other: Gradients) -> Tensor:
        """Return the inner product."""
        mine, theirs = dict(iter(self)), dict(iter(other))
        products = [(mine[n] * theirs[n].conj()).real for n in self.index if n in theirs]
        if not products:
            return torch.zeros((), device=self.tensors[0].device if self.tensors else "cpu")
        device = products[0].device
        precise = torch.float32 if device.type == "mps" else torch.float64  # sums of millions of products
        total = torch.stack([p.sum(dtype=precise).to(device) for p in products]).sum()
        return total if self.sum_over_shards is None else self.sum_over_shards(total)

    def _own_norms(self) -> Tensor:
        """Return the norms of the tensors as they lie on this rank."""
        if not self.tensors:
            return torch.zeros(0, device="cpu")
        # a bf16 norm has 8 bits, an fp16 one overflows at 65,504
        dtypes = {t.dtype for t in self.tensors}
        wide = torch.float64 if torch.float64 in dtypes else torch.float32
        dtype = wide if dtypes.intersection(_HALF) else None
        norms = list(torch._foreach_norm(self.tensors, 2, dtype=dtype))
        if len(dtypes) > 1 or len({t.device for t in self.tensors}) > 1:
            widest = max((n.dtype for n in norms), key=lambda d: torch.finfo(d).bits)
            norms = [n.to(norms[0].device, widest) for n in norms]
        return torch.stack(norms)

    def sub_(self, other: Gradients) -> Gradients:
        """Return self - other: in place, where nobody else has this memory."""
        if not self.fresh or self is other or self.index != other.index:
            return self - other
        torch._foreach_sub_(self.tensors, other.tensors)
        return self

    def averaged(self, other: Gradients, weight: float) -> Gradients:
        """Return (1 - weight) self + weight other: in place, where nobody else has this memory."""
        if weight == 1:
            return other
        if self.index != other.index:
            return (self * (1 - weight)).plus(other, weight)
        if self.fresh:
            torch._foreach_lerp_(self.tensors, other.tensors, weight)
            return self
        mixed = torch._foreach_lerp(self.tensors, other.tensors, weight)
        return self.like(self.index, mixed, shared=self.shared and other.shared, fresh=True)

    def plus(self, other: Gradients, factor: float) -> Gradients:
        """Return self + factor * other, in one go."""
        shared = self.shared and other.shared
        if self.index == other.index:
            sums = torch._foreach_add(self.tensors, other.tensors, alpha=factor) if self.tensors else ()
            return self.like(self.index, sums, shared=shared, fresh=True)
        mine, theirs = dict(iter(self)), dict(iter(other))
        both = [n for n in theirs if n in mine]
        if both:
            sums = torch._foreach_add([mine[n] for n in both], [theirs[n] for n in both], alpha=factor)
            mine.update(zip(both, sums, strict=True))
        mine.update({n: t if factor == 1 else t * factor for n, t in theirs.items() if n not in mine})
        return (self if self.index else other).like(mine, mine.values(), shared=shared)


NONE = Gradients()
"""No gradient of any tensor."""
