"""What makes sharpness-aware training worse here? Steps are watched, and each finding comes with its remedy.

Every optimizer watches its own first steps and warns of what it finds, each thing once, as a ``GuidanceWarning``:
``warnings.simplefilter("ignore", esam.GuidanceWarning)`` keeps it silent. ``esam.analysis.doctor`` watches any others.
Watching reads what a step computes anyway, and two norms; it changes nothing.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .ascent import Eps, tensor_norms, whole_norm
from .buffers import has_batch_statistics
from .checks import GuidanceWarning, warn_caller
from .perturb import warn_of_rounding

if TYPE_CHECKING:
    from .step import SharpnessAware

SHORTEST, LONGEST = 1e-5, 0.1
"""Of ||eps|| / ||theta||: rules of thumb. The papers' settings give about 0.001, relative methods up to 0.05."""
FEW = 8
"""Samples that BatchNorm can hardly normalise by."""
SHOWN = 4
"""How often a sample must have been ranked before it is suspected."""
WARM = 3
"""Steps in which torch.compile may compile."""
FIRST = 20
"""Steps that are measured without being asked."""
LOOKS = (1, 5, FIRST, 200)
"""After how many steps an optimizer looks at what it has seen of itself; the last is for phases and graphs."""
RECOMPILED = 3
"""In so many steps after the first ones: then it is again and again, not once for a phase or an epoch's last batch."""
MOST_SAMPLES = 100_000
"""Of a data set whose samples are counted one by one."""


@dataclass(frozen=True)
class Finding:
    """Something that makes training worse, and the way out."""

    sign: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sign}: {self.remedy}"


class Unwatched:
    """Nobody looks: what a step tells is not noted."""

    def samples(self, numbers: Sequence[int] | Tensor) -> None:
        """Learn which samples of the data set the next step takes, in the order of its batch."""

    def saw_eps(self, rho: Sequence[float], weights: Sequence[Tensor], eps: Eps) -> None:
        """Learn a perturbation, with the radius of each tensor."""

    def saw_move(self, theta: Sequence[Tensor], weights: Sequence[Tensor], eps: Eps) -> None:
        """Learn where the weights have moved."""

    def saw_kept(self, indices: Tensor, size: int) -> None:
        """Learn which samples of a batch take the second pass."""

    def stepped(self) -> None:
        """Learn that a step is over."""


@dataclass
class Watch(Unwatched):
    """What was seen of an optimizer's steps."""

    optimizer: SharpnessAware
    steps: int = 0
    ratios: list[float] = field(default_factory=list)
    """||eps|| / ||theta||, over the perturbed tensors, of each perturbation."""
    full_ratios: list[float] = field(default_factory=list)
    """The same, as they will be once a radius that grows is whole."""
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
    _graphs_before: int = field(default_factory=lambda: graph_count())

    def samples(self, numbers: Sequence[int] | Tensor) -> None:
        """Say which samples of the data set the next step takes, in the order of its batch."""
        self._samples = numbers.tolist() if isinstance(numbers, Tensor) else list(numbers)

    def saw_eps(self, rho: Sequence[float], weights: Sequence[Tensor], eps: Eps) -> None:
        """Note how long a perturbation is beside what it perturbs."""
        norms = tensor_norms(eps.directions)
        length = math.sqrt(sum((f * n) ** 2 for f, n in zip(eps.factors, norms, strict=True)))
        whole = whole_norm([w.to_local() if hasattr(w, "to_local") else w for w in weights])
        self.aimless += length == 0
        if length > 0 and whole > 0:
            most = max(group.get("rho", self.optimizer.rho) for group in self.optimizer.param_groups)
            grown = min(1.0, max(map(abs, rho), default=0.0) / most) if most > 0 else 1.0
            self.ratios.append(length / whole)
            self.full_ratios.append(length / whole / (grown or 1.0))

    def saw_kept(self, indices: Tensor, size: int) -> None:
        """Note how many samples are kept, and which, where it is known who they are."""
        self.sizes.append(size)
        self.kept.append(len(indices))
        if len(self._samples) == size:
            self.shown.update(self._samples)
            self.chosen.update(self._samples[i] for i in indices.tolist())

    def stepped(self) -> None:
        """Count."""
        self.steps += 1
        self.graphs.append(graph_count() - self._graphs_before)
        self._samples = []

    def findings(self) -> list[Finding]:
        """Return what was found, gravest first."""
        looks = (self._never, self._aimless, self._length, self._precision, self._few, self._same, self._graphs)
        return [finding for look in looks if (finding := look()) is not None]

    def suspects(self) -> list[int]:
        """Return the samples that a ranking kept each time it saw them: often those whose labels are wrong."""
        return sorted(n for n, times in self.shown.items() if times >= SHOWN and self.chosen[n] == times)

    def _never(self) -> Finding | None:
        return None if self.steps == 0 or self.ratios or self.aimless else self._off() or self._waiting()

    def _off(self) -> Finding | None:
        groups = self.optimizer.param_groups
        if not any(group.get("perturb", True) for group in groups):
            return Finding("no step can be perturbed", "every group has perturb=False; leave it out")
        if all(group.get("rho", self.optimizer.rho) == 0 for group in groups):
            return Finding("no step can be perturbed, for rho is 0", "give a radius, such as rho=0.05")
        return None

    def _waiting(self) -> Finding | None:
        name, waits = self.optimizer.__class__.__name__, self.optimizer.waits()
        if waits:
            sign = f"{name} perturbs nothing in its next {waits} steps"
            remedy = "a training that ends before is never perturbed; total_steps counts its steps, not its epochs"
        elif getattr(self.optimizer, "radius", None) == "growing":
            sign = f"no step of {self.steps} was perturbed"
            remedy = f'the radius of {name} grows as the loss falls, and it has not fallen; try radius="constant"'
        else:
            sign = f"no step of {self.steps} was perturbed"
            remedy = f"{name} perturbs in a phase of the training that has not begun, or never; watch more steps"
        return Finding(sign, remedy)

    def _aimless(self) -> Finding | None:
        if not self.aimless:
            return None
        return Finding(
            f"the first gradient was zero, inf or NaN in {self.aimless} of {self.steps} steps, which gives eps = 0",
            "look at the loss there; lower the learning rate, or clip",
        )

    def _length(self) -> Finding | None:
        if not self.full_ratios:
            return None
        ratio = statistics.median(self.full_ratios)
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


class FirstSteps(Watch):
    """An optimizer's look at its own first steps: what is found is warned of, each thing once."""

    def __init__(self, optimizer: SharpnessAware) -> None:
        super().__init__(weakref.proxy(optimizer))  # which holds this: a circle would keep a model's memory
        self._told: set[str] = set()
        self._moved = False

    def saw_eps(self, rho: Sequence[float], weights: Sequence[Tensor], eps: Eps) -> None:
        """Measure the first perturbations only: norms cost something."""
        if len(self.ratios) < FIRST:
            super().saw_eps(rho, weights, eps)

    def saw_move(self, theta: Sequence[Tensor], weights: Sequence[Tensor], eps: Eps) -> None:
        """Warn where low precision swallows the first perturbation."""
        if not self._moved:
            self._moved = True
            warn_of_rounding(theta, weights, eps)

    def stepped(self) -> None:
        """Look now and then, and go once there is no more to see."""
        often = max((self.shown[n] for n in self._samples), default=0)  # the last batch stands for the others
        super().stepped()
        counting = 0 < often <= SHOWN and len(self.shown) <= MOST_SAMPLES
        over = self.steps >= LOOKS[-1] and not counting
        if over:
            self.optimizer.watch = Unwatched()
        if self.optimizer.rho > 0 and self.optimizer.parallel.rank == 0 and (over or self.steps in LOOKS):
            for name, look in self._looks().items():
                if name not in self._told and (finding := look()) is not None:
                    self._told.add(name)
                    warn_caller(str(finding), GuidanceWarning)

    def _looks(self) -> dict[str, Callable[[], Finding | None]]:
        """Return the looks that are worth it after so many steps."""
        looks = {"few": self._few, "off": self._off}
        if self.optimizer.waits():
            looks["phase"] = self._waiting
        if len(self.ratios) >= LOOKS[1]:
            looks["length"] = self._length
        if self.steps >= LOOKS[-1]:
            looks |= {"phase": self._never, "graphs": self._recompiled, "same": self._same}
            if self.aimless > len(self.ratios):
                looks["aimless"] = self._aimless
        return looks

    def _recompiled(self) -> Finding | None:
        later = self.graphs[WARM:]
        steps = sum(after > before for before, after in itertools.pairwise(later))
        return self._graphs() if steps >= RECOMPILED else None


def graph_count() -> int:
    """Return how many graphs torch.compile has made in this process."""
    if "torch._dynamo.utils" not in sys.modules:  # torch.compile has not been used
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
