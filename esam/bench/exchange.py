"""What do the ranks exchange in a step of each method?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from esam.optim import METHODS
from esam.optim.mask import share_of_full_draws
from esam.optim.methods.aesam import AESAM
from esam.optim.methods.esam import ESAM
from esam.optim.methods.follow import FollowingESAM
from esam.optim.methods.looksam import LookSAM
from esam.optim.methods.partsam import PartSAM
from esam.optim.methods.saf import SAF
from esam.optim.methods.slicesam import SliceSAM
from esam.optim.methods.sometimes import SometimesSAM
from esam.optim.step import SharpnessAware

Perturbation = Literal["rank", "global"]
ASSUMED_WORTH = 0.5
"""Share of AE-SAM's steps that perturb, which its own rule decides."""


@dataclass(frozen=True)
class Exchange:
    """What one step exchanges, on average; a whole gradient, or all weights, count 1."""

    hidden: float = 0.0
    """Gradients summed by DistributedDataParallel while the last backward still runs."""
    exposed: float = 0.0
    """Gradients summed between two passes, where everything waits."""
    gathers: float = 0.0
    """Weights put together by fully_shard, before a forward and, block by block, before its backward."""
    scatters: float = 0.0
    """Gradients summed and parted by fully_shard."""
    small: float = 0.0
    """Exchanges of a few numbers: they cost their latency alone."""

    def moved(self, size: float, ranks: int) -> float:
        """Return the bytes that each rank sends in a step, by rings; ``size`` is a whole gradient in bytes."""
        sums, shards = self.hidden + self.exposed, self.gathers + self.scatters
        return (2 * sums + shards) * size * (ranks - 1) / ranks


@dataclass(frozen=True)
class Passes:
    """How a method's step runs, on average."""

    perturbed: float
    """Share of the steps that perturb by a gradient of their own."""
    both: float
    """Passes forward and backward, of however many samples."""
    forward: float
    """Passes forward alone."""
    drawn: float
    """Share of the weights that is perturbed."""
    partial: float
    """Share of the perturbed steps that leave out a tensor."""
    last: float
    """Share of the batch in the last pass."""


def passes(name: str, settings: Mapping[str, Any] | None = None, *, worth: float = ASSUMED_WORTH) -> Passes:
    """Return how a registered method's step runs."""
    row = METHODS[name]
    kind, given = row.build, row.effective(settings)
    if kind is LookSAM or kind is SliceSAM:
        perturbed = 1 / given["k"]
    elif kind is SometimesSAM:
        perturbed = given["share"]
    elif kind is AESAM:
        perturbed = worth
    else:
        perturbed = float(_overrides_nothing_but_steps(kind))
    last = given.get("gamma", 1.0) if issubclass(kind, ESAM) or name in ("base-part", "sam-unbiased") else 1.0
    if kind is SliceSAM:
        last = perturbed * given["share"] + 1 - perturbed
    if kind is PartSAM and given["descent"] == "part":
        last = given["share"]
    apart = perturbed if kind is SliceSAM and given["share"] < 1 else 0.0
    ranked = issubclass(kind, ESAM) and given.get("gamma", 1.0) < 1 and given.get("ranking", "exact") == "exact"
    drawn = 0.0 if given.get("tensors") == "norm" else given.get("beta", 1.0)
    whole = share_of_full_draws(drawn) if given.get("mask") == "suffix" else float(drawn == 1)
    return Passes(perturbed, 1 + perturbed + apart, perturbed * ranked, drawn, 1 - whole, last)


def exchange(
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    perturbation: Perturbation = "rank",
    strategy: Literal["ddp", "fsdp"] = "ddp",
    worth: float = ASSUMED_WORTH,
) -> Exchange:
    """Return what a step of a registered method exchanges; buffers, which are small, apart.

    >>> exchange("sam"), exchange("sam", perturbation="global").exposed
    (Exchange(hidden=1.0, exposed=0.0, gathers=0.0, scatters=0.0, small=0.0), 1.0)
    """
    row, run = METHODS[name], passes(name, settings, worth=worth)
    kind = row.build
    one_eps = perturbation == "global" and "perturbation" in row.options()
    # how far training has come is the same number on every rank; SAF hears of the others' outputs
    follows = kind is FollowingESAM or row.effective(settings).get("radius") == "growing"
    small = float(follows) + (4.0 if kind is SAF else 0.0) + float(kind is AESAM)
    if strategy == "fsdp":  # norms are those of all shards; LookSAM wants three numbers of every gradient
        small += run.perturbed * (1 + run.partial) + (kind is AESAM) + 3 * (kind is LookSAM)
        return Exchange(gathers=2 * run.both + run.forward, scatters=run.both, small=small)
    hidden, exposed = 1.0, 0.0
    if one_eps:
        exposed += run.perturbed * run.drawn
        small += run.perturbed * (1 + run.partial)  # which tensors any rank reached, drawn and not drawn
    elif issubclass(kind, ESAM) and run.drawn < 1:
        small += 1  # the norms to remember
    if kind is AESAM:
        hidden = run.perturbed
        exposed, small = (1.0, small + 1 - run.perturbed) if one_eps else (1 - hidden, small + 1 - hidden)
    if _reads_first(kind):
        exposed, small = exposed + run.perturbed, small + run.perturbed
    return Exchange(hidden=hidden, exposed=exposed, small=small)


def _reads_first(kind: type[SharpnessAware]) -> bool:
    """Tell whether the first gradient of all ranks is wanted at the end of a step."""
    return kind is LookSAM or (kind.whole_gradient and kind.combine is not SharpnessAware.combine)


def _overrides_nothing_but_steps(kind: type[SharpnessAware]) -> bool:
    """Tell whether every step perturbs by a gradient."""
    return not kind.blind and kind.perturbs_now is SharpnessAware.perturbs_now
