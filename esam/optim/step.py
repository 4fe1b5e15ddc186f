"""How does one sharpness-aware step flow? Here, once, in three phases; a method only chooses the parts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from .ascent import Eps
from .batch import Closure, Piece, checked_closures, checked_sizes, split_by_piece
from .buffers import Buffers, kept_buffers
from .checks import checked_count, checked_number
from .combine import added
from .graph import graph_of
from .parallel import Gradients, refusing_hidden_replicas
from .perturb import perturbed, warn_of_rounding
from .ranking import Candidates, HeadWatch
from .underway import Group, Step, Targets
from .wrapper import Wrapper


class SharpnessAware(Wrapper):
    """Step by the gradient at theta + eps, with any torch optimizer as the base.

    A method overrides some of the parts ``perturbs_now``, ``mask``, ``part``, ``ascent``, ``select``, ``remainder`` and
    ``combine``, and, if it remembers something from step to step, ``memory`` and ``load_memory``; never a phase.
    """

    whole_gradient = False
    """Whether the method wants the first gradient of every trainable tensor, not only of the drawn ones."""
    reads_losses = False
    """Whether ``select`` looks at single losses: a closure must then return one a sample."""
    reads_head = False
    """Whether ``select`` looks at what the last linear layer saw."""
    draws_samples = False
    """Whether ``part`` or ``select`` draws random numbers."""
    takes_part = False
    """Whether the method has a ``part``: the size of the batch must then be known before its first pass."""
    runs_rest = True
    """Whether the samples outside the part run in the first pass too."""
    second_weight = 1.0
    """Factor on the second gradient."""

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float,
        m: int | None = None,
        perturbation: str = "rank",
        seed: int | None = None,
    ) -> None:
        self.m = None if m is None else checked_count("m", m, "samples")
        super().__init__(base, model, rho=rho, perturbation=perturbation, seed=seed)
        self._step: Step | None = None
        self._rounding_checked = False

    @staticmethod
    def idle(settings: Mapping[str, Any]) -> set[str]:
        """Return the settings that have no effect beside the others."""
        return set()

    # The parts ------------------------------------------------------------------------------------------------------

    def perturbs_now(self) -> bool:
        """Tell whether this step perturbs; if not, it is the base's own step with ``combine`` on top."""
        return True

    def mask(self, targets: Targets) -> Targets:
        """Return the tensors to perturb in this step, each with its radius."""
        return targets

    def part(self, size: int, generator: torch.Generator) -> Tensor:
        """Return the indices of the part S of a batch: it runs apart in the first pass, and its gradient gives eps."""
        raise NotImplementedError

    @abstractmethod
    def ascent(self, chosen: Targets, gradients: list[Tensor]) -> Eps:
        """Return eps for the drawn tensors."""

    def select(self, batch: Candidates) -> Tensor | None:
        """Return the indices of the samples that take the second pass; None for all of them."""
        return None

    def remainder(self, batch: Gradients, part: Gradients) -> Gradients:
        """Return what the second gradient is added to, out of the first gradients of the batch and of its part."""
        return {}

    def combine(self, first: Gradients | None, scale: float) -> None:
        """Change ``.grad``, which is ``scale`` times the gradient; ``first`` as at theta; None: not perturbed."""

    # The phases -----------------------------------------------------------------------------------------------------

    @final
    def accumulate(
        self, closure: Closure, scaler: GradScaler | None = None, *, batch_size: int | None = None
    ) -> Tensor:
        """Take the first pass of one micro-batch and return its losses at theta, detached.

        Args:
            closure: Called with ``slice(None)`` or a tensor of indices; returns the loss of each of those samples, or,
                where no ranking reads single losses, their mean; graph attached.
            scaler: A ``GradScaler`` for fp16.
            batch_size: How many samples the micro-batch has. Read with ``m``, by methods that run a part of the batch,
                and where the closure returns a mean; left out where it is needed, a forward pass finds it out.
        """
        (closure,) = checked_closures(closure)
        (size,) = checked_sizes(batch_size, 1)
        return self._accumulate(closure, size, _enabled(scaler), last=False)

    @final
    def gradient(self, scaler: GradScaler | None = None) -> Tensor:
        """Perturb, take the second passes, and return the mean loss at theta; ``.grad`` is final, but still scaled.

        Clip it, unscale it, and call ``step()`` without a closure.
        """
        step, scaler = self._step, _enabled(scaler)
        if step is None or step.ready:
            raise ValueError("gradient() has nothing to work on; call accumulate(closure) for each micro-batch first")
        scale = 1.0 if scaler is None else scaler.get_scale()
        with self._phase():
            if step.perturbs:
                self._close(step, scaler, last=True)
                first = self.parallel.mean(step.first, step.parameters) if self.whole_gradient else None
            else:
                self._finish_plain(step)
                first = None
            with torch.no_grad():
                self.combine(first, scale)
            self.parallel.share_buffers()
            step.ready = True
        return step.mean_loss()

    @final
    def step(  # type: ignore[override]
        self,
        closure: Closure | Sequence[Closure] | None = None,
        *,
        scaler: GradScaler | None = None,
        batch_size: int | Sequence[int] | None = None,
    ) -> Tensor | None:
        """Take one step and return the mean loss at theta, detached; without a closure, by what ``gradient()`` left.

        Args:
            closure: As for ``accumulate``; a list of closures stands for the micro-batches of one batch.
            scaler: A ``GradScaler`` for fp16: an overflow in either pass skips the step. Call ``scaler.update()`` after
                it, as in any fp16 loop.
            batch_size: As for ``accumulate``; one number a closure.

        There is no need to zero ``.grad`` before; after it, ``.grad`` holds the gradient that the base used.
        """
        if closure is None:
            self._step_by_gradient()
            return None
        closures, scaler = checked_closures(closure), _enabled(scaler)
        sizes = checked_sizes(batch_size, len(closures))
        self._step = None
        for number, (one, size) in enumerate(zip(closures, sizes, strict=True), start=1):
            self._accumulate(one, size, scaler, last=number == len(closures))
        loss = self.gradient(scaler)
        self._step = None
        if scaler is None:
            self.base.step()
        else:
            scaler.unscale_(self.base)  # before the base's hooks, which clip
            scaler.step(self.base)
        return loss

    def _step_by_gradient(self) -> None:
        ready = self._step is not None and self._step.ready
        # torch.distributed.checkpoint takes a step at rate zero to learn what a state looks like
        if not ready and any(group.get("lr", 1.0) != 0 for group in self.param_groups):
            raise ValueError(
                "step() without a closure takes the gradient that gradient() left, and there is none; call "
                "accumulate(closure) and gradient() first, or pass step a closure"
            )
        self.base.step()
        self._step = None

    # The flow -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _phase(self) -> Iterator[None]:
        """Compute gradients inside this block; an error takes the whole step back."""
        self.parallel.moved()  # for all we know
        try:
            with torch.enable_grad():
                yield
        except BaseException:
            step, self._step = self._step, None
            if step is not None:
                for p in step.parameters:
                    p.grad = None
                step.buffers.put_back()
                self.generator.set_state(step.generator)
                self.load_memory(step.memory)
            self.parallel.broken_off()
            raise

    def _begin(self) -> Step:
        parameters = self._parameters()
        for p in parameters:
            p.grad = None
        if not self._shared:
            self.parallel.share(self.generator)
            self._shared = True
        targets = self._targets(perturbable=True)
        step = Step(parameters, Buffers(self.model), self.generator.get_state(), self.memory())
        self._step = step
        step.perturbs = len(targets) > 0 and self.perturbs_now()
        if step.perturbs:
            step.chosen = self.mask(targets)
            step.wanted = self._targets(perturbable=False) if self.whole_gradient else step.chosen
        if self.draws_samples:
            seed = int(torch.randint(2**62, (), generator=self.generator, device="cpu"))
            step.draws = torch.Generator().manual_seed(seed + self.parallel.rank)
        return step

    def _accumulate(self, closure: Closure, size: int | None, scaler: GradScaler | None, *, last: bool) -> Tensor:
        with self._phase():
            step = self._step if self._step is not None and not self._step.ready else self._begin()
            losses, samples = [], []
            with refusing_hidden_replicas(self.model, self.parallel):
                for piece, apart in self._pieces(step, closure, size, scaler):
                    if step.perturbs:
                        losses.append(self._first_pass(step, piece, scaler, apart=apart))
                    else:
                        losses.append(self._plain_pass(step, piece, scaler, last=last))
                    samples.append(piece.samples)
            if len(losses) == 1:
                return losses[0]
            return torch.cat(losses)[torch.cat(samples).argsort()]  # type: ignore[arg-type]

    def _pieces(
        self, step: Step, closure: Closure, size: int | None, scaler: GradScaler | None
    ) -> Iterator[tuple[Piece, bool]]:
        """Cut a micro-batch as the method wants it; yields each piece and whether it is the part that runs apart."""
        devices = frozenset(p.device for p in step.parameters if not p.is_cpu)
        whole = Piece(closure, devices, size, scalar_allowed=not self.reads_losses)
        cut = self.m is not None and step.perturbs
        if not cut and not self.takes_part:
            yield whole, False
            return
        if size is None:
            with kept_buffers(self.model), self.parallel.unsynchronised():
                size = whole.measured_size()
        if self.takes_part:
            part = self.part(size, step.draws or self.generator)
            rest = torch.ones(size, dtype=torch.bool).index_fill(0, part, False).nonzero().flatten()
            yield replace(whole, size=len(part), samples=part), True
            if self.runs_rest and len(rest):
                yield replace(whole, size=len(rest), samples=rest), False
            return
        start = 0
        while start < size:
            assert self.m is not None
            if step.group.size == self.m:  # closed when the next one starts: the last is left to gradient()
                self._close(step, scaler, last=False)
            stop = min(size, start + self.m - step.group.size)
            samples = None if stop - start == size else torch.arange(start, stop)
            yield replace(whole, size=stop - start, samples=samples), False
            start = stop

    def _plain_pass(self, step: Step, piece: Piece, scaler: GradScaler | None, *, last: bool) -> Tensor:
        """Add a piece's gradient at theta to ``.grad``, in units of the first piece's size."""
        group = step.group
        with nullcontext() if last else self.parallel.unsynchronised():
            losses = piece.first_losses()
            group.losses.append(losses.detach())
            share = len(losses) / len(group.losses[0])
            if last and len(group.losses) > 1:  # ranks differ in size, so scale before they exchange gradients
                whole = len(group.losses[0]) / group.size
                self._scale_gradients(step, whole)
                share *= whole
            _backward(losses, share, scaler)
        step.synchronised = last
        return group.losses[-1]

    def _finish_plain(self, step: Step) -> None:
        """Make ``.grad`` the gradient of the mean over all pieces and ranks."""
        if step.synchronised:
            return
        if len(step.group.losses) > 1:
            self._scale_gradients(step, len(step.group.losses[0]) / step.group.size)
        found = {n: p.grad for n, p in enumerate(step.parameters) if p.grad is not None}
        for n, gradient in self.parallel.mean(found, step.parameters).items():
            step.parameters[n].grad = gradient

    def _first_pass(self, step: Step, piece: Piece, scaler: GradScaler | None, *, apart: bool) -> Tensor:
        """Add a piece's losses at theta and their gradient to its group; ``.grad`` is not touched.

        Nothing is computed for tensors that are not wanted, and backward stops at the earliest that is.
        """
        group, wanted = step.group, step.wanted
        if self.reads_head and group.watch is None:
            group.watch = HeadWatch(self.model)
        watch = group.watch
        with self.parallel.unsynchronised(), nullcontext() if watch is None else watch.watching():
            losses = piece.first_losses()
            inputs: list[Any] = list(wanted.weights)
            if wanted.left_out and self.parallel.sharded:  # the whole backward runs, and tells what it reached
                inputs += [step.parameters[n] for n in wanted.left_out]
            elif wanted.left_out:
                graph = graph_of(losses)
                group.leaves |= graph.leaves
                inputs += graph.inputs_to_add(wanted.weights)
            if watch is not None:
                inputs.append(watch.take_output(len(losses)))
            found = self.parallel.gradients(_scaled(losses.mean(), scaler), inputs)
        if self.parallel.sharded:
            group.leaves |= {id(tensor) for tensor, g in zip(inputs, found, strict=True) if g is not None}
        if watch is not None:
            watch.give_gradient(found[-1], len(losses), 1.0 if scaler is None else scaler.get_scale())
        pairs = zip(wanted.index, found, strict=False)
        gradients = {n: g.to_dense() if g.is_sparse else g for n, g in pairs if g is not None}
        losses = losses.detach()
        group.pieces.append(piece)
        group.apart.append(apart)
        group.losses.append(losses)
        group.batch.add(gradients, len(losses))
        if apart:
            group.part.add(gradients, len(losses))
        return losses

    def _close(self, step: Step, scaler: GradScaler | None, *, last: bool) -> None:
        """Perturb by what a group's first pass found, and add the gradient of its second pass to ``.grad``."""
        group, parallel = step.group, self.parallel
        scale = 1.0 if scaler is None else scaler.get_scale()
        gradients, part = group.batch.mean(scale), group.part.mean(scale)
        if not gradients and not step.chosen.left_out:
            raise ValueError("the first pass reached none of the optimizer's parameters; are they the model's?")
        share = self._share(step, last=last)
        if scaler is not None and not math.isfinite(parallel.norm(list(gradients.values()))):
            share = math.nan  # the scaler, and by the exchange of gradients every rank, sees it and skips the step
        if self.whole_gradient:
            step.first = added(step.first, gradients, share)
        if last:
            for n, remainder in self.remainder(gradients, part).items():
                step.parameters[n].grad = torch.empty_like(step.parameters[n])
                torch.mul(remainder, scale, out=parallel.local([step.parameters[n].grad])[0])
        source = part if self.takes_part else gradients
        if not parallel.own_eps:
            source = parallel.mean(source, step.parameters)
        reached, eps = self._eps(step, source)
        del gradients, part, source
        with perturbed(parallel.local(reached.weights), eps, on_move=parallel.moved) as theta, kept_buffers(self.model):
            if not self._rounding_checked:
                self._rounding_checked = True
                warn_of_rounding(theta, parallel.local(reached.weights), eps)
            del eps  # its directions are the first gradient: the second pass needs the memory
            self._second_pass(self._select(step), share * self.second_weight, scaler, last=last)
        if not last:
            step.closed.append(group)
            step.group = Group()

    def _share(self, step: Step, *, last: bool) -> float:
        """Return a group's weight: in units of the first group's size, of all samples once their number is known."""
        if not step.closed:
            return 1.0
        if not last:
            return step.group.size / step.closed[0].size
        whole = step.group.size + sum(group.size for group in step.closed)
        self._scale_gradients(step, step.closed[0].size / whole)
        return step.group.size / whole

    def _eps(self, step: Step, source: Gradients) -> tuple[Targets, Eps]:
        """Return the tensors that the first pass reached and their perturbation."""
        chosen, leaves = step.chosen, step.group.leaves
        picks = [i for i, n in enumerate(chosen.index) if n in source]
        # a tensor that took no part in the first pass counts as zero, drawn or not
        out = {n for n in chosen.left_out if not leaves or id(step.parameters[n]) in leaves}
        if chosen.left_out and not self.parallel.own_eps:
            out = self.parallel.union(out, len(step.parameters))
        reached = replace(chosen.only(picks), left_out=tuple(n for n in chosen.left_out if n in out))
        return reached, self.ascent(reached, [source[n] for n in reached.index])

    def _select(self, step: Step) -> list[tuple[Piece, Tensor | None]]:
        """Return the pieces of the second pass, each with the samples to keep of it."""
        group = step.group
        every = list(range(len(group.pieces)))
        # every rank of a sharded model must run every piece, or the others wait for it: there, each selects for itself
        return [
            kept
            for unit in ([[i] for i in every] if self.parallel.sharded else [every])
            for kept in self._select_in(step, unit)
        ]

    def _select_in(self, step: Step, unit: list[int]) -> list[tuple[Piece, Tensor | None]]:
        group, pieces = step.group, [step.group.pieces[i] for i in unit]

        def perturbed_losses() -> Tensor:
            with torch.no_grad():
                again = torch.cat([piece.losses_again() for piece in pieces])
            torch.clear_autocast_cache()  # it would hand the second pass weights without a graph
            return again

        head = None if group.watch is None else group.watch.head(unit)
        sizes = [piece.count(None) for piece in pieces]
        part = torch.repeat_interleave(torch.tensor([group.apart[i] for i in unit]), torch.tensor(sizes)).nonzero()
        losses = torch.cat([group.losses[i] for i in unit])
        draws = self.generator if step.draws is None else step.draws
        keep = self.select(Candidates(losses, perturbed_losses, draws, head, part.flatten()))
        return [(piece, None) for piece in pieces] if keep is None else split_by_piece(keep, pieces)

    def _second_pass(
        self, keeps: list[tuple[Piece, Tensor | None]], share: float, scaler: GradScaler | None, *, last: bool
    ) -> None:
        """Add ``share`` times the mean gradient of the kept samples to ``.grad``; ranks exchange it on the last."""
        kept = sum(piece.count(keep) for piece, keep in keeps)
        for number, (piece, keep) in enumerate(keeps, start=1):
            with nullcontext() if last and number == len(keeps) else self.parallel.unsynchronised():
                _backward(piece.losses_again(keep), share * piece.count(keep) / kept, scaler)

    # What the flow needs --------------------------------------------------------------------------------------------

    def _targets(self, *, perturbable: bool) -> Targets:
        """Return all trainable tensors, or those with a radius."""
        targets = Targets([], [], [])
        start = 0
        for group in self.param_groups:
            rho = checked_number("rho", group.get("rho", self.rho)) if group.get("perturb", True) else 0.0
            if rho > 0 or not perturbable:
                trainable = [n for n, p in enumerate(group["params"]) if p.requires_grad]
                targets.weights.extend(group["params"][n] for n in trainable)
                targets.rho.extend([-rho if group.get("maximize") else rho] * len(trainable))
                targets.index.extend(start + n for n in trainable)
            start += len(group["params"])
        return targets

    def _scale_gradients(self, step: Step, factor: float) -> None:
        gradients = [p.grad for p in step.parameters if p.grad is not None]
        if gradients:
            torch._foreach_mul_(self.parallel.local(gradients), factor)


def _enabled(scaler: GradScaler | None) -> GradScaler | None:
    return scaler if scaler is not None and scaler.is_enabled() else None


def _scaled(loss: Tensor, scaler: GradScaler | None) -> Tensor:
    return loss if scaler is None else scaler.scale(loss)


def _backward(losses: Tensor, share: float, scaler: GradScaler | None) -> None:
    loss = losses.mean() if share == 1 else losses.mean() * share
    _scaled(loss, scaler).backward()  # type: ignore[no-untyped-call]
