"""What makes sharpness-aware training worse here? Steps are monitored, and each finding comes with its remedy.

Every optimizer monitors its own first steps and warns of what it finds, each thing once, as a ``GuidanceWarning``:
``warnings.simplefilter("ignore", esam.GuidanceWarning)`` keeps it silent. ``esam.analysis.doctor`` monitors any others.
Monitoring reads what a step computes anyway, two norms, and the losses of one forward pass; it changes nothing. Values
stay on their device until ``findings`` reads them: for an optimizer's own first steps, once.
"""

from __future__ import annotations

import math
import statistics
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .buffers import has_batch_statistics
from .checks import GuidanceWarning, warn_caller
from .gradients import Gradients
from .optimizer import PERTURB_KEY, RHO_KEY

if TYPE_CHECKING:
    from .step import SharpnessAware

SHORTEST, LONGEST = 1e-5, 0.1
"""Of ||eps|| / ||theta||: rules of thumb. The papers' settings give about 0.001, relative methods up to 0.05."""
FEW = 8
"""Samples that BatchNorm can hardly normalise by."""
FIRST = 10
"""Steps that an optimizer monitors by itself."""
PARTS_DIFFER = 0.02
"""Of the loss: between a batch and its parts. Dropout and BatchNorm stay below, sums and pairs do not."""
_LOW_PRECISION = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Finding:
    """Something that makes training worse, and the way out."""

    sign: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sign}: {self.remedy}"


class Monitor:
    """Notes nothing: what an optimizer has after its first steps."""

    def begins(self) -> None:
        """Note that a step begins."""

    def saw_eps(self, weights: Sequence[Tensor], eps: Gradients) -> None:
        """Note a perturbation of weights at theta."""

    def saw_kept(self, kept: int, size: int) -> None:
        """Note how many samples of a batch run apart, or take the second pass."""

    def saw_whole(self, loss: Tensor, size: int, losses: list[tuple[Tensor, int]]) -> None:
        """Note the loss of a whole batch; those of its parts, with their sizes, will be added to the list."""

    def stepped(self) -> None:
        """Note that a step is over."""


class StepMonitor(Monitor):
    """Notes what there is to see in an optimizer's steps."""

    def __init__(self, optimizer: SharpnessAware) -> None:
        self.optimizer = weakref.proxy(optimizer)  # which holds this: a circle would keep a model's memory
        self.steps = 0
        self.sizes: list[int] = []
        """Samples of the batches that were cut."""
        self.kept: list[int] = []
        """Samples of the part that was taken from each."""
        self._lengths: list[Tensor] = []
        self._rounding: list[Tensor] = []
        self._parts: tuple[Tensor, int, list[tuple[Tensor, int]], int] | None = None

    def saw_eps(self, weights: Sequence[Tensor], eps: Gradients) -> None:
        """Note how long a perturbation is beside what it perturbs, and what low precision leaves of it."""
        if not eps.tensors:
            return
        length = eps.like(eps.index, [w.detach() for w in weights]).norm()
        self._lengths.append(torch.stack([eps.norm().to(length), length]))
        low = [(w, e) for w, e in zip(weights, eps.tensors, strict=True) if w.dtype in _LOW_PRECISION]
        if low and not self._rounding:
            with torch.no_grad():
                moved = [torch.stack([((w + e).to(w.dtype) != w).sum(), (e != 0).sum()]) for w, e in low]
            self._rounding.append(torch.stack([m.to(moved[0].device) for m in moved]).sum(0))

    def saw_kept(self, kept: int, size: int) -> None:
        """Note how many samples are kept."""
        if kept:
            self.sizes.append(size)
            self.kept.append(kept)

    def saw_whole(self, loss: Tensor, size: int, losses: list[tuple[Tensor, int]]) -> None:
        """Note the loss of a whole batch, to be compared with that of its parts."""
        self._parts = (loss.detach(), size, losses, len(losses))

    def stepped(self) -> None:
        """Count."""
        self.steps += 1

    @property
    def ratios(self) -> list[float]:
        """||eps|| / ||theta||, over the perturbed tensors, of each perturbation that had a direction."""
        return [float(e / w) for e, w in self._read() if e > 0 and w > 0]

    @property
    def zero_gradients(self) -> int:
        """How many perturbations had no direction: the first gradient was zero, inf or NaN."""
        return sum(float(e) == 0 for e, _ in self._read())

    def findings(self) -> list[Finding]:
        """Return what was found, gravest first."""
        signs = (self._never(), self._adds_up(), self._zero(), self._length(), self._precision(), self._few())
        return [finding for finding in signs if finding is not None]

    def _read(self) -> Tensor:
        return torch.stack([pair.double().cpu() for pair in self._lengths]) if self._lengths else torch.empty(0, 2)

    def _never(self) -> Finding | None:
        if self.steps == 0 or self._lengths:
            return None
        return self._off() or Finding(
            f"no step of {self.steps} was perturbed",
            f"{type(self.optimizer).__name__} perturbs in a phase of the training that has not begun; monitor more",
        )

    def _off(self) -> Finding | None:
        groups, rho = self.optimizer.param_groups, self.optimizer.rho
        if rho is None:  # a control, which never perturbs
            return None
        if not any(group.get(PERTURB_KEY, True) for group in groups):
            return Finding("no step can be perturbed", f"every group has {PERTURB_KEY}=False; leave it out")
        if all(group.get(RHO_KEY, rho) == 0 for group in groups):
            return Finding("no step can be perturbed, for rho is 0", "give a radius, such as rho=0.05")
        return None

    def _adds_up(self) -> Finding | None:
        """Compare a batch with its parts."""
        if self._parts is None:
            return None
        whole_loss, size, losses, start = self._parts
        parts: list[tuple[Tensor, int]] = []
        for loss, count in losses[start:]:
            if sum(n for _, n in parts) < size:
                parts.append((loss, count))
        if len(parts) < 2:
            return None
        values = torch.stack([loss.double().cpu() for loss, _ in parts] + [whole_loss.double().cpu()]).tolist()
        total, counts, kind = values.pop(), [count for _, count in parts], self.optimizer.loss
        mean = sum(v * n for v, n in zip(values, counts, strict=True)) / sum(counts)
        declared, undeclared = (sum(values), mean) if kind == "sum" else (mean, sum(values))
        if not math.isfinite(total) or abs(declared - total) <= PARTS_DIFFER * abs(total):
            if len({total, *values}) == 1 and total != 0:
                return Finding("the loss is the same for every part of a batch: it ignores the samples it is given",
                               'index inputs and targets by them, or pass loss="whole"')  # fmt: skip
            return None
        remedy = 'it depends on the batch as a whole (pairs, contrast, a graph): pass loss="whole", or choose SAM'
        if abs(undeclared - total) <= PARTS_DIFFER * abs(total):
            remedy = f'pass loss="{"mean" if kind == "sum" else "sum"}"'
        return Finding(
            f'the loss of a batch, {total:.4g}, is not that of its parts, {declared:.4g}, as loss="{kind}" has it',
            remedy,
        )

    def _zero(self) -> Finding | None:
        if not self.zero_gradients:
            return None
        return Finding(
            f"the first gradient was zero, inf or NaN in {self.zero_gradients} of {self.steps} steps, which gives "
            "eps = 0",
            "look at the loss there; lower the learning rate, or clip",
        )

    def _length(self) -> Finding | None:
        ratios = self.ratios
        if not ratios:
            return None
        ratio = statistics.median(ratios)
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
        if not self._rounding:
            return None
        moved, meant = self._rounding[0].tolist()
        if not meant or moved >= 0.5 * meant:
            return None
        return Finding(
            f"the perturbation moves only {moved / meant:.0%} of the weights that are kept in low precision, which "
            "rounds the rest of it away",
            "keep the weights in float32 and compute in low precision with torch.autocast",
        )

    def _few(self) -> Finding | None:
        if not self.kept or min(self.kept) >= FEW or not has_batch_statistics(self.optimizer.model):
            return None
        return Finding(
            f"BatchNorm normalises by {min(self.kept)} samples in the second pass, of {max(self.sizes)} in the batch",
            f"larger batches, or a larger share of them (gamma, share), so that {FEW} or more are left",
        )


class FirstSteps(StepMonitor):
    """An optimizer's monitor of its own first steps: what it finds is warned of, each thing once."""

    def begins(self) -> None:
        """Before the last of them, note the parameters that nobody should move."""
        self._untrained = _untrained(self.optimizer) if self.steps == FIRST - 1 else {}

    def stepped(self) -> None:
        """Warn after the first step of what needs no reading, after the last of the rest, and go."""
        super().stepped()
        if self.steps not in (1, FIRST):
            return
        optimizer = self.optimizer
        findings = [self._off(), self._few()] if self.steps == 1 else []
        if self.steps == FIRST:
            findings = [self._adds_up(), self._length(), self._precision(), self._carried()]
            if self.zero_gradients > len(self.ratios):
                findings.append(self._zero())
            optimizer.monitor = Monitor()
        if optimizer.ranks.rank == 0:
            for finding in findings:
                if finding is not None:
                    warn_caller(str(finding), GuidanceWarning)

    def _carried(self) -> Finding | None:
        now = _untrained(self.optimizer)
        moved = [name for name, value in self._untrained.items() if now.get(name, value) != value]
        if not moved:
            return None
        return Finding(
            f"{moved[0]}, a parameter that the base does not train, moves in forward passes: in every pass of a step, "
            "by perturbed weights too",
            "register it as a buffer, which moves once, or move it after the step",
        )


def _untrained(optimizer: SharpnessAware) -> dict[str, tuple[int, float]]:
    """Return the model's parameters that the base does not train: which tensor each is, and the sum of its values."""
    trained = {id(p) for p in optimizer.parameters()}
    others = {name: p for name, p in optimizer.model.named_parameters() if id(p) not in trained}
    plain = {name: p for name, p in others.items() if type(p) is nn.Parameter and not p.is_meta}
    return {name: (id(p), float(p.detach().float().sum())) for name, p in plain.items()}
