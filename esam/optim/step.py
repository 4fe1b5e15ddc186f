"""How does one sharpness-aware step flow? Here, once; a method only chooses the parts."""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from .ascent import Eps
from .batch import Closure, Piece, checked_closures, cut_into_groups, measured_size, shared_out
from .checks import checked_count
from .passes import Gradients, added, first_pass, marking_the_last, mean_over_ranks, overflowed, plain_pass, second_pass
from .perturb import forget_casts, moved_share, perturbed
from .ranking import Candidates, HeadWatch
from .statistics import copy_statistics, frozen_statistics, restore_statistics, tracking_layers
from .warn import warn_caller
from .workarounds import GraphFaults
from .wrapper import Wrapper

_LOW_PRECISION = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Targets:
    """Tensors that a pass differentiates, side by side with what each needs."""

    weights: list[Tensor]
    rho: list[float]
    index: list[int]
    """Each tensor's place among all the optimizer's parameters: a key that outlives a restart."""
    left_out: tuple[int, ...] = ()
    """Places of the tensors that could have been perturbed but were not chosen."""

    def __len__(self) -> int:
        return len(self.weights)

    def only(self, picks: Sequence[int]) -> Targets:
        """Return the targets at these positions; the others are left out."""
        picked = set(picks)
        return Targets(
            [self.weights[i] for i in picks],
            [self.rho[i] for i in picks],
            [self.index[i] for i in picks],
            self.left_out + tuple(n for i, n in enumerate(self.index) if i not in picked),
        )

    def having(self, gradients: Gradients) -> Targets:
        """Return the targets that have a gradient."""
        if all(n in gradients for n in self.index):
            return self
        return self.only([i for i, n in enumerate(self.index) if n in gradients])


class SharpnessAware(Wrapper):
    """Step by the gradient at theta + eps, with any torch optimizer as the base.

    A method overrides some of the parts ``perturbs_now``, ``choose``, ``ascent``, ``select`` and ``combine``, and, if
    it remembers something from step to step, ``memory`` and ``load_memory``; never ``step``.
    """

    whole_gradient: bool = False
    """Whether ``combine`` wants the first gradient of every trainable tensor, not only of the chosen ones."""

    reads_head: bool = False
    """Whether ``select`` looks at what the last linear layer saw."""

    def __init__(
        self, base: Optimizer, model: nn.Module, *, rho: float, m: int | None = None, seed: int | None = None
    ) -> None:
        self.m = None if m is None else checked_count("m", m, "samples")
        super().__init__(base, model, rho=rho, seed=seed)
        self._rounding_checked = False
        self._faults = GraphFaults()

    @staticmethod
    def idle(settings: Mapping[str, Any]) -> set[str]:
        """Return the settings that have no effect beside the others."""
        return set()

    # The parts ------------------------------------------------------------------------------------------------------

    def perturbs_now(self) -> bool:
        """Tell whether this step perturbs; if not, it is the base's own step with ``combine`` on top."""
        return True

    def choose(self, targets: Targets) -> Targets:
        """Return the tensors to perturb in this step, each with its radius."""
        return targets

    @abstractmethod
    def ascent(self, chosen: Targets, gradients: list[Tensor]) -> Eps:
        """Return eps for the chosen tensors."""

    def select(self, batch: Candidates) -> Tensor | None:
        """Return the indices of the samples that take the second pass; None for all of them."""
        return None

    def combine(self, first: Gradients | None) -> None:
        """Change ``.grad`` before the base steps; ``first`` is the whole first gradient; None: not perturbed."""

    # The flow -------------------------------------------------------------------------------------------------------

    @final
    def step(  # type: ignore[override]
        self,
        closure: Closure | Sequence[Closure] | None = None,
        *,
        scaler: GradScaler | None = None,
        batch_size: int | Sequence[int] | None = None,
    ) -> Tensor:
        """Take one step and return the mean loss at theta, detached.

        Args:
            closure: Called with ``slice(None)`` or a tensor of indices; returns the loss of each of those samples,
                graph attached. A list of closures stands for the micro-batches of one batch.
            scaler: A ``GradScaler`` for fp16: an overflow in either pass skips the step. Call ``scaler.update()`` after
                it, as in any fp16 loop.
            batch_size: Read only with ``m``: how many samples the batch has (one number a closure). Left out, a forward
                pass is spent to learn it.

        There is no need to zero ``.grad`` before; after it, ``.grad`` holds the gradient that the base used.
        """
        devices = frozenset(p.device for p in self._parameters() if not p.is_cpu)
        pieces = [Piece(c, devices) for c in checked_closures(closure)]
        layers = tracking_layers(self.model)
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        forget_casts()
        with torch.enable_grad(), self._unchanged_on_error(layers):
            targets = self._targets(perturbable=True)
            if len(targets) and self.perturbs_now():
                losses = self._gradient_at_perturbed(self._groups(pieces, batch_size), targets, layers, scaler)
            else:
                losses = self._gradient_at_theta(pieces, scaler)
            if scaler is None:
                self.base.step()
            else:
                scaler.step(self.base)
        return losses.mean()

    def _gradient_at_theta(self, pieces: list[Piece], scaler: GradScaler | None) -> Tensor:
        """Leave in ``.grad`` what the base alone would step by; return the losses."""
        self._clear_gradients()
        losses = plain_pass(pieces, self._parameters(), scaler, self.model)
        self._finish_gradient(None, scaler)
        return losses

    def _gradient_at_perturbed(
        self, groups: list[list[Piece]], targets: Targets, layers: list[_NormBase], scaler: GradScaler | None
    ) -> Tensor:
        """Leave the gradient at theta + eps in ``.grad``; return the losses at theta."""
        chosen = self.choose(targets)
        differentiated = self._targets(perturbable=False) if self.whole_gradient else chosen
        samples = sum(piece.size or 0 for group in groups for piece in group)
        losses: list[Tensor] = []
        first: Gradients = {}
        for group, last in marking_the_last(groups):
            watch = HeadWatch(self.model) if self.reads_head else None
            group_losses, gradients = first_pass(
                group, differentiated.weights, differentiated.index, scaler, self.model, self._faults, watch
            )
            losses.append(group_losses)
            if not gradients and len(chosen) == len(targets):
                raise ValueError(
                    "the first pass reached none of the optimizer's parameters; are they the model's? Sharded models "
                    "(FSDP) hide them: use DistributedDataParallel"
                )
            if len(losses) == 1:
                self._clear_gradients()
            share = len(group_losses) / samples if len(groups) > 1 else 1.0
            if scaler is not None and overflowed(gradients):
                share = math.nan  # the scaler, and by the exchange of gradients every rank, sees it and skips the step
            if self.whole_gradient:
                first = added(first, gradients, share)
            reached = chosen.having(gradients)
            eps = self.ascent(reached, [gradients[n] for n in reached.index])
            del gradients
            with perturbed(reached.weights, eps) as theta, frozen_statistics(layers):
                self._warn_of_rounding(theta, reached.weights, eps)
                del eps  # its directions are the first gradient: the second pass needs the memory
                keeps = self._select(group, group_losses, watch)
                second_pass(keeps, share, scaler, self.model, last)
        if self.whole_gradient:
            first = mean_over_ranks(first, self._parameters(), self.model)
        self._finish_gradient(first if self.whole_gradient else None, scaler)
        return torch.cat(losses)

    def _select(
        self, pieces: list[Piece], losses: Tensor, watch: HeadWatch | None
    ) -> list[tuple[Piece, Tensor | None]]:
        """Return the pieces of the second pass, each with the samples to keep of it."""

        def perturbed_losses() -> Tensor:
            with torch.no_grad():
                again = torch.cat([piece.losses_again() for piece in pieces])
            forget_casts()  # autocast would hand the second pass weights without a graph
            return again

        head = None if watch is None else watch.head()
        keep = self.select(Candidates(losses, perturbed_losses, self.generator, head))
        return [(piece, None) for piece in pieces] if keep is None else shared_out(keep, pieces)

    def _finish_gradient(self, first: Gradients | None, scaler: GradScaler | None) -> None:
        if scaler is not None:
            scaler.unscale_(self.base)
        with torch.no_grad():
            self.combine(first)

    # What the flow needs --------------------------------------------------------------------------------------------

    def _targets(self, *, perturbable: bool) -> Targets:
        """Return all trainable tensors, or those with a radius."""
        targets = Targets([], [], [])
        start = 0
        for group in self.param_groups:
            rho = float(group.get("rho", self.rho)) if group.get("perturb", True) else 0.0
            if rho > 0 or not perturbable:
                trainable = [n for n, p in enumerate(group["params"]) if p.requires_grad]
                targets.weights.extend(group["params"][n] for n in trainable)
                targets.rho.extend([rho] * len(trainable))
                targets.index.extend(start + n for n in trainable)
            start += len(group["params"])
        return targets

    def _groups(self, pieces: list[Piece], batch_size: int | Sequence[int] | None) -> list[list[Piece]]:
        if self.m is None:
            return [pieces]
        if batch_size is None:
            with frozen_statistics(self.model):
                sizes = [measured_size(piece.closure, piece.devices) for piece in pieces]
        else:
            given = batch_size if isinstance(batch_size, Sequence) else [batch_size]
            sizes = [operator.index(n) for n in given]
        if len(sizes) != len(pieces) or min(sizes) < 1:
            raise ValueError(f"batch_size must give one number >= 1 for each of {len(pieces)} closures, got {sizes}")
        return cut_into_groups(pieces, sizes, self.m)

    def _clear_gradients(self) -> None:
        for p in self._parameters():
            p.grad = None

    @contextmanager
    def _unchanged_on_error(self, layers: list[_NormBase]) -> Iterator[None]:
        """Take back what a failed step has changed: gradients, statistics, generator and memory."""
        parameters = self._parameters()
        gradients = [p.grad for p in parameters]
        statistics = copy_statistics(layers)
        generator, memory = self.generator.get_state(), self.memory()
        try:
            yield
        except BaseException:
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
            restore_statistics(statistics)
            self.generator.set_state(generator)
            self.load_memory(memory)
            raise

    def _warn_of_rounding(self, theta: list[Tensor], weights: list[Tensor], eps: Eps) -> None:
        if self._rounding_checked:
            return
        self._rounding_checked = True
        low = [i for i, w in enumerate(weights) if w.dtype in _LOW_PRECISION]
        if not low:
            return
        share = moved_share(*([part[i] for i in low] for part in (theta, weights, eps.tensors())))
        if share < 0.5:
            warn_caller(
                f"the perturbation moves only {share:.0%} of the weights: {weights[low[0]].dtype} rounds it away, "
                f"so {type(self).__name__} does little here; keep the weights in float32 and compute in low precision "
                "with torch.autocast"
            )
