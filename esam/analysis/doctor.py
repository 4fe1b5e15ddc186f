"""What makes sharpness-aware training worse here? Some steps are watched, and each finding comes with its remedy.

```python
with watching(optimizer) as watch:
    for rows in order[:40]:
        watch.samples(rows)  # optional: which samples of the data set the next step takes
        optimizer.step(closure)
for finding in watch.findings():
    print(finding)
```
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esam.optim import SharpnessAware
from esam.optim.ascent import Eps, whole_norm
from esam.optim.buffers import has_batch_statistics
from esam.optim.ranking import Candidates, Weighted

SHORTEST, LONGEST = 1e-5, 0.1
"""Of ||eps|| / ||theta||: rules of thumb. The papers' settings give about 0.001, relative methods up to 0.05."""
FEW = 8
"""Samples that BatchNorm can hardly normalise by."""
SHOWN = 4
"""How often a sample must have been ranked before it is suspected."""
WARM = 3
"""Steps in which torch.compile may compile."""


@dataclass(frozen=True)
class Finding:
    """Something that makes training worse, and the way out."""

    sign: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sign}: {self.remedy}"


@dataclass
class Watch:
    """What was seen of an optimizer's steps."""

    optimizer: SharpnessAware
    steps: int = 0
    ratios: list[float] = field(default_factory=list)
    """||eps|| / ||theta||, over the perturbed tensors, of each perturbation."""
    aimless: int = 0
    """Steps whose first gradient had no direction."""
    sizes: list[int] = field(default_factory=list)
    """Samples of the batches that were ranked."""
    kept: list[int] = field(default_factory=list)
    """Samples that were left of them."""
    shown: Counter[int] = field(default_factory=Counter)
    chosen: Counter[int] = field(default_factory=Counter)
    graphs: list[int] = field(default_factory=list)
    """How many graphs torch.compile had made after each step."""
    _samples: list[int] = field(default_factory=list)

    def samples(self, numbers: Sequence[int] | Tensor) -> None:
        """Say which samples of the data set the next step takes, in the order of its batch."""
        self._samples = [int(n) for n in numbers]

    def findings(self) -> list[Finding]:
        """Return what was found, gravest first."""
        looks = (self._never, self._aimless, self._length, self._precision, self._few, self._same, self._graphs)
        return [finding for look in looks if (finding := look()) is not None]

    def suspects(self) -> list[int]:
        """Return the samples that a ranking kept each time it saw them: often those whose labels are wrong."""
        return sorted(n for n, times in self.shown.items() if times >= SHOWN and self.chosen[n] == times)

    def _never(self) -> Finding | None:
        if self.steps == 0 or self.ratios:
            return None
        if all(group.get("rho", self.optimizer.rho) == 0 for group in self.optimizer.param_groups):
            return Finding(f"no step of {self.steps} was perturbed, for rho is 0", "give a radius, such as rho=0.05")
        if not any(group.get("perturb", True) for group in self.optimizer.param_groups):
            return Finding(f"no step of {self.steps} was perturbed", "every group has perturb=False; leave it out")
        return Finding(
            f"no step of {self.steps} was perturbed",
            f"{type(self.optimizer).__name__} perturbs in a phase of the training that has not begun, or never; watch "
            "more steps, or give the total_steps that training really has",
        )

    def _aimless(self) -> Finding | None:
        if not self.aimless:
            return None
        return Finding(
            f"the first gradient was zero, inf or NaN in {self.aimless} of {self.steps} steps, which gives eps = 0",
            "look at the loss there; lower the learning rate, or clip",
        )

    def _length(self) -> Finding | None:
        if not self.ratios:
            return None
        ratio = statistics.median(self.ratios)
        if SHORTEST <= ratio <= LONGEST:
            return None
        word, way = ("long", "divide") if ratio > LONGEST else ("short", "multiply")
        factor = 10 ** math.ceil(abs(math.log10(ratio / (LONGEST if ratio > LONGEST else SHORTEST))))
        return Finding(
            f"the perturbation is very {word} for this model: ||eps|| / ||theta|| = {ratio:.1g}, where {SHORTEST:g} to "
            f"{LONGEST:g} is usual",
            f"{way} rho by {max(2, factor)} or so",
        )

    def _precision(self) -> Finding | None:
        half = [p for g in self.optimizer.param_groups for p in g["params"] if p.dtype in (torch.half, torch.bfloat16)]
        if not half:
            return None
        return Finding(
            f"{len(half)} weights are kept in {half[0].dtype}, which rounds most of a small perturbation away",
            "keep them in float32 and compute in low precision with torch.autocast",
        )

    def _few(self) -> Finding | None:
        if not self.kept or not has_batch_statistics(self.optimizer.model) or min(self.kept) >= FEW:
            return None
        return Finding(
            f"BatchNorm normalises by {min(self.kept)} samples in the second pass, of {max(self.sizes)} in the batch",
            f"larger batches, or a larger share of them (gamma, share), so that {FEW} or more are left",
        )

    def _same(self) -> Finding | None:
        suspects, ranked = self.suspects(), [n for n, times in self.shown.items() if times >= SHOWN]
        if not ranked or not self.sizes:
            return None
        chance = (sum(self.kept) / sum(self.sizes)) ** SHOWN
        if len(suspects) <= 2 * chance * len(ranked):
            return None
        some = ", ".join(map(str, suspects[:10])) + (", ..." if len(suspects) > 10 else "")
        return Finding(
            f"the ranking keeps the same samples again and again: {len(suspects)} of {len(ranked)}, where chance would "
            f"keep {chance * len(ranked):.0f}",
            f'look at their labels ({some}); where many are wrong, ranking="random" or SAM does better',
        )

    def _graphs(self) -> Finding | None:
        if len(self.graphs) <= WARM or self.graphs[-1] == self.graphs[WARM - 1]:
            return None
        return Finding(
            f"torch.compile made {self.graphs[-1] - self.graphs[WARM - 1]} graphs after the first {WARM} steps",
            "batches of one size (drop_last=True), or torch.compile(model, dynamic=True)",
        )


@contextmanager
def watching(optimizer: SharpnessAware) -> Iterator[Watch]:
    """Watch the steps that an optimizer takes inside this block; the steps are the same as without."""
    watch = Watch(optimizer)
    before = _graph_count()

    def saw_eps(weights: list[Tensor], eps: Eps) -> None:
        length = math.sqrt(sum((f * whole_norm([d])) ** 2 for f, d in zip(eps.factors, eps.directions, strict=True)))
        whole = whole_norm(optimizer.parallel.local(weights))
        watch.aimless += length == 0
        if length > 0 and whole > 0:
            watch.ratios.append(length / whole)

    def ascent(inner: Callable[..., Eps]) -> Callable[..., Eps]:
        def seen(drawn: Any, gradients: list[Tensor]) -> Eps:
            eps = inner(drawn, gradients)
            saw_eps(drawn.weights, eps)
            return eps

        return seen

    def blind_eps(inner: Callable[..., Any]) -> Callable[..., Any]:
        def seen(targets: Any) -> Any:
            weights, eps = inner(targets)
            saw_eps(weights, eps)
            return weights, eps

        return seen

    def select(inner: Callable[..., Any]) -> Callable[..., Any]:
        def seen(batch: Candidates) -> Any:
            found = inner(batch)
            if found is not None:
                indices = found.indices if isinstance(found, Weighted) else found
                _note(watch, indices, len(batch.losses))
            return found

        return seen

    def part(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def seen(size: int, generator: torch.Generator) -> Tensor:
            found = inner(size, generator)
            watch.sizes.append(size)
            watch.kept.append(len(found))
            return found

        return seen

    def after_step(inner: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def seen(loss: Tensor) -> None:
            watch.steps += 1
            watch.graphs.append(_graph_count() - before)
            watch._samples = []
            inner(loss)

        return seen

    parts: dict[str, Callable[..., Any]] = {
        "ascent": ascent,
        "blind_eps": blind_eps,
        "select": select,
        "part": part,
        "after_step": after_step,
    }
    for name, wrap in parts.items():
        vars(optimizer)[name] = wrap(getattr(optimizer, name))
    try:
        yield watch
    finally:
        for name in parts:
            vars(optimizer).pop(name, None)


def _note(watch: Watch, indices: Tensor, size: int) -> None:
    watch.sizes.append(size)
    watch.kept.append(len(indices))
    if len(watch._samples) == size:
        watch.shown.update(watch._samples)
        watch.chosen.update(watch._samples[i] for i in indices.tolist())


def _graph_count() -> int:
    """Return how many graphs torch.compile has made in this process."""
    if "torch._dynamo.utils" not in sys.modules:  # torch.compile has not been used
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
