"""How does one sharpness-aware step flow? Here, once, in three phases; a method only chooses the parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from .ascent import Eps, l2_ascent
from .batch import UNCOUNTED, Closure, Piece, checked_closures, checked_sizes, mean_of, split_by_piece, without_graph
from .buffers import Buffers, has_batch_statistics, kept_buffers
from .checks import checked_count, checked_number, refuse_dropped_batches, warn_caller
from .combine import added
from .graph import graph_of
from .guidance import FirstSteps, Unwatched
from .parallel import Gradients, refusing_hidden_replicas
from .perturb import perturbed
from .ranking import Candidates, HeadWatch, Weighted
from .underway import Group, Kept, Role, Step, Targets
from .wrapper import Wrapper


class SharpnessAware(Wrapper):
    """Step by the gradient at theta + eps, with any torch optimizer as the base.

    A method overrides some of the parts below and, if it remembers something from step to step, ``memory`` and
    ``load_memory``; never a phase.

    Args:
        base: Any torch optimizer; it makes the step.
        model: The module that ``base`` trains; its buffers (BatchNorm statistics, ...) move in the first pass only.
        rho: Radius of the neighbourhood; 0 is the base optimizer itself.
        m: Perturb each group of m samples of the batch by its own eps (m-sharpness); None: one eps for the batch.
        perturbation: Under DistributedDataParallel, "rank": each rank perturbs by its own gradient; "global": all by
            the mean of theirs, for one more exchange of gradients.
        seed: Seed of the optimizer's own generator; None: torch's initial seed.
    """

    whole_gradient = False
    """Whether the method wants the first gradient of every trainable tensor, not only of the drawn ones."""
    reads_losses = False
    """Whether ``select`` looks at single losses: a closure must then return one a sample."""
    reads_head = False
    """Whether ``select`` looks at what the last linear layer saw."""
    draws_samples = False
    """Whether ``part`` or ``select`` draws random numbers."""
    parted: Literal["no", "drawn", "ranked"] = "no"
    """Whether a part S of each batch runs apart in the first pass, and how it is chosen: its gradient gives eps."""
    first_on: Literal["batch", "part"] = "batch"
    """Where there is a part: what runs at theta."""
    second_on: Literal["batch", "part"] = "part"
    """Where there is a part: what runs at theta + eps."""
    blind = False
    """Whether eps needs no gradient: one pass, at theta + eps, is then the whole step."""
    second_weight = 1.0
    """Factor on the second gradient."""

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float,
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        seed: int | None = None,
    ) -> None:
        self.m = None if m is None else checked_count("m", m, "samples")
        super().__init__(base, model, rho=rho, perturbation=perturbation, seed=seed)
        self._step: Step | None = None
        self._size_warned = False
        self.watch: Unwatched = FirstSteps(self)

    @staticmethod
    def idle(settings: Mapping[str, Any]) -> set[str]:
        """Return the settings that have no effect beside the others."""
        return set()

    # The parts ------------------------------------------------------------------------------------------------------

    def perturbs_now(self) -> bool:
        """Tell whether this step perturbs; if not, it is the base's own step with ``combine`` on top."""
        return True

    def waits(self) -> int:
        """Return how many steps are planned before the first that perturbs."""
        return 0

    def mask(self, targets: Targets) -> Targets:
        """Return the tensors to perturb in this step, each with its radius."""
        return targets

    def part(self, size: int, generator: torch.Generator) -> Tensor:
        """Return the indices of the part S of a batch of that size, drawn before it runs."""
        raise NotImplementedError

    def ranked_part(self, batch: Candidates) -> Tensor:
        """Return the indices of S by what the whole batch showed at theta; S then runs there once more."""
        raise NotImplementedError

    def blind_eps(self, targets: Targets) -> tuple[list[Tensor], Eps]:
        """Return weights and a perturbation of them that no gradient of this step is needed for."""
        raise NotImplementedError

    def worth(self, norm: float) -> bool:
        """Tell, by the norm of the first gradient, whether the second pass is worth its price; else the first steps."""
        return True

    def ascent(self, drawn: Targets, gradients: list[Tensor]) -> Eps:
        """Return eps for the drawn tensors that have a gradient: by default SAM's, ``rho g / ||g||``."""
        return l2_ascent(gradients, drawn.rho, self.parallel.norm(gradients))

    def select(self, batch: Candidates) -> Tensor | Weighted | None:
        """Return the indices of the samples that take the second pass, perhaps with weights; None for all of them."""
        raise NotImplementedError

    def remainder(self, batch: Gradients, part: Gradients) -> Gradients:
        """Return what the second gradient is added to, out of the first gradients of the batch and of its part."""
        return {}

    def combine(self, first: Gradients | None, scale: float) -> None:
        """Change ``.grad``, which is ``scale`` times the gradient; ``first`` as at theta; None: not perturbed."""

    def around_passes(self) -> AbstractContextManager[Any]:
        """Return what is in force while a batch runs at theta: hooks on the model."""
        return nullcontext()

    def after_step(self, loss: Tensor) -> None:
        """Learn that the base has stepped; ``loss`` is the mean at theta, NaN where no closure ran."""

    def evaluation_weights(self) -> AbstractContextManager[Any]:
        """Hold the model, inside this block, at the weights to evaluate and to keep: by default those it has."""
        return nullcontext()

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
        (closure,), (size,) = checked_closures(closure), checked_sizes(batch_size, 1)
        return self._accumulate(closure, size, _enabled(scaler), last=False)

    @final
    def gradient(self, scaler: GradScaler | None = None) -> Tensor:
        """Perturb, take the second passes, and return the mean loss at theta; ``.grad`` is final, but still scaled.

        Clip it, unscale it, and call ``step()`` without a closure.
        """
        step = self._step
        if step is None or step.ready:
            raise ValueError("gradient() has nothing to work on; call accumulate(closure) for each micro-batch first")
        with self._phase():
            first, scaler = None, _enabled(scaler)
            if step.perturbs:
                self._close(step, scaler, last=True)
                if self._reads_first and step.perturbs:
                    first = self.parallel.mean(step.first, step.parameters)
            elif not step.synchronised:
                self._finish_plain(step)
            with torch.no_grad():
                self.combine(first, 1.0 if scaler is None else scaler.get_scale())
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
        loss: Tensor | None = None
        closures: list[Closure] = []
        sizes: list[int | None] = []
        scaler = _enabled(scaler)
        if closure is not None:
            closures = checked_closures(closure)
            sizes = checked_sizes(batch_size, len(closures))
            refuse_dropped_batches()
            self._step = None
        # torch.distributed.checkpoint takes a step at rate zero to learn what a state looks like
        elif (self._step is None or not self._step.ready) and any(g.get("lr", 1.0) != 0 for g in self.param_groups):
            raise ValueError(
                "step() without a closure takes the gradient that gradient() left, and there is none; call "
                "accumulate(closure) and gradient() first, or pass step a closure"
            )
        with self._undone_on_error():
            for number, (one, size) in enumerate(zip(closures, sizes, strict=True), start=1):
                self._accumulate(one, size, scaler, last=self.parallel.replicated and number == len(closures))
            if closures:
                loss = self.gradient(scaler)
            self._move(scaler)
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it in hooks, and they are the base's

    # The flow -------------------------------------------------------------------------------------------------------

    def _move(self, scaler: GradScaler | None) -> None:
        """Let the base step. Once it begins, the step counts: an error then takes nothing back."""

        began = False
        loss = torch.tensor(math.nan) if self._step is None else self._step.mean_loss()

        def begin(*_: Any) -> None:
            nonlocal began
            self._step, began = None, True

        handle = self.base.register_step_pre_hook(begin)  # the last of them
        try:
            if scaler is None:
                self.base.step()
            else:
                scaler.unscale_(self.base)  # before the base's hooks, which clip
                scaler.step(self.base)
        finally:
            handle.remove()
            if began:
                self.after_step(loss)
                self.watch.stepped()
        self._step = None

    @contextmanager
    def _phase(self) -> Iterator[None]:
        """Compute gradients inside this block; an error takes the whole step back."""
        self.parallel.moved()  # for all we know
        with self._undone_on_error(), torch.enable_grad():
            yield

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        try:
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
        self._step = None  # one that nobody stepped by is over: an error from here on does not take it back
        parameters = self._parameters()
        for p in parameters:
            p.grad = None
        if not self._shared:
            self.parallel.share(self.generator)
            self._shared = True
        targets = self._targets(perturbable=True)
        step = Step(parameters, Buffers(self.model), self.generator.get_state(), self.memory())
        self._step = step
        if targets and self.perturbs_now():
            step.perturbs, step.drawn = not self.blind, self.mask(targets)
            step.wanted = self._targets(perturbable=False) if self.whole_gradient else step.drawn
            if self.blind:
                with torch.no_grad():
                    step.moved = self.blind_eps(step.drawn)
                    self.watch.saw_eps(step.drawn.rho, *step.moved)
        if self.draws_samples:
            seed = int(torch.randint(2**62, (), generator=self.generator, device="cpu"))
            step.samples = torch.Generator().manual_seed(seed + self.parallel.rank)
        return step

    def _accumulate(self, closure: Closure, size: int | None, scaler: GradScaler | None, *, last: bool) -> Tensor:
        with self._phase():
            step = self._begin() if self._step is None or self._step.ready else self._step
            done: list[tuple[Tensor, Piece]] = []
            hidden, around = refusing_hidden_replicas(self.model, self.parallel), self.around_passes()
            with hidden, around, perturbed(*step.moved, on_move=self.parallel.moved):
                for piece, role in self._pieces(step, closure, size, scaler):
                    if step.perturbs:
                        losses = self._first_pass(step, piece, scaler, role)
                    else:
                        losses = self._plain_pass(step, piece, scaler, last=last)
                    done += [(losses, piece)] if role.counted else []
        if len(done) == 1:
            return done[0][0]
        order = torch.cat([piece.samples for _, piece in done if piece.samples is not None]).argsort()
        return torch.cat([losses for losses, _ in done])[order]

    def _pieces(
        self, step: Step, closure: Closure, size: int | None, scaler: GradScaler | None
    ) -> Iterator[tuple[Piece, Role]]:
        """Cut a micro-batch as the method wants it; a piece has run when the next is asked for."""
        devices = frozenset(p.device for p in step.parameters if not p.is_cpu)
        whole = Piece(closure, devices, size, one_loss_each=self.reads_losses)
        m = self.m if step.perturbs else None
        parted = self.parted if step.perturbs or self.first_on == self.second_on == "part" else "no"
        if parted == "ranked":
            yield whole, Role(second=False)
            part = self.ranked_part(self._candidates(step, [len(step.group.pieces) - 1]))
            yield replace(whole, size=len(part), samples=part), Role(counted=False, apart=True, moves_buffers=False)
            return
        if m is None and parted == "no":
            yield whole, Role()
            return
        if size is None:
            with kept_buffers(self.model), self.parallel.unsynchronised():
                size = whole.measured_size()
            if not self._size_warned:
                self._size_warned = True
                warn_caller(
                    "a part of the batch runs apart, and a forward pass finds out how large the batch is; "
                    "pass batch_size=len(x) beside the closure to save that pass"
                )
        if parted == "drawn":
            yield from self._in_parts(step, replace(whole, size=size), size)
            return
        start = 0
        while m is not None and start < size:
            if step.group.size == m:  # closed when the next one starts: the last is left to gradient()
                self._close(step, scaler, last=False)
            stop = min(size, start + m - step.group.size)
            samples = torch.arange(start, stop, device="cpu") if stop - start < size else None
            yield replace(whole, size=stop - start, samples=samples), Role()
            start = stop

    def _in_parts(self, step: Step, whole: Piece, size: int) -> Iterator[tuple[Piece, Role]]:
        """Cut a batch into its part, which runs first, and the rest."""
        part = self.part(size, step.samples or self.generator)
        self.watch.saw_kept(part, size)
        rest = torch.ones(size, dtype=torch.bool, device=part.device).index_fill(0, part, False).nonzero().flatten()
        if len(rest) == 0 and len(part) == size:
            yield whole, Role(apart=True)
            return
        runs_rest, again = self.first_on == "batch", self.second_on == "part"
        if not again:
            whole.remember_random_state()
            step.group.second.append(whole)
        # statistics of a few samples would be as loud as those of the many
        few = runs_rest and len(part) < len(rest)
        yield replace(whole, size=len(part), samples=part), Role(apart=True, second=again, moves_buffers=not few)
        if runs_rest:
            yield replace(whole, size=len(rest), samples=rest), Role(second=False, moves_buffers=few)

    def _plain_pass(self, step: Step, piece: Piece, scaler: GradScaler | None, *, last: bool) -> Tensor:
        """Add a piece's gradient at theta to ``.grad``, in units of the first piece's size."""
        group = step.group
        with nullcontext() if last else self.parallel.unsynchronised():
            loss = mean_of(piece.first_losses())
            group.pieces.append(piece)
            share = piece.count(None) / group.pieces[0].count(None)
            if last and len(group.pieces) > 1:  # ranks differ in size, so scale before they exchange gradients
                whole = group.pieces[0].count(None) / group.size
                self._scale_gradients(step, whole)
                share *= whole
            _backward(loss, share, scaler)
        step.synchronised = last
        return piece.losses

    def _finish_plain(self, step: Step) -> None:
        """Make ``.grad`` the gradient of the mean over all pieces and ranks."""
        if len(step.group.pieces) > 1:
            self._scale_gradients(step, step.group.pieces[0].count(None) / step.group.size)
        found = {n: p.grad for n, p in enumerate(step.parameters) if p.grad is not None}
        for n, gradient in self.parallel.mean(found, step.parameters).items():
            step.parameters[n].grad = gradient

    def _first_pass(self, step: Step, piece: Piece, scaler: GradScaler | None, role: Role) -> Tensor:
        """Add a piece's losses at theta and their gradient to its group; ``.grad`` is not touched.

        Nothing is computed for tensors that are not wanted, and backward stops at the earliest that is.
        """
        group, wanted = step.group, step.wanted
        if self.reads_head and group.watch is None:
            group.watch = HeadWatch(self.model)
        watch = group.watch if role.counted else None
        watching = nullcontext() if watch is None else watch.watching()
        buffers = nullcontext() if role.moves_buffers else kept_buffers(self.model)
        with self.parallel.unsynchronised(), watching, buffers:
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
            found = self.parallel.gradients(_scaled(mean_of(losses), scaler), inputs)
        if self.parallel.sharded:
            group.leaves |= {id(tensor) for tensor, g in zip(inputs, found, strict=True) if g is not None}
        if watch is not None:
            watch.give_gradient(found[-1], len(losses), 1.0 if scaler is None else scaler.get_scale())
        pairs = zip(wanted.index, found, strict=False)
        gradients = {n: g.to_dense() if g.is_sparse else g for n, g in pairs if g is not None}
        if role.counted:
            group.pieces.append(piece)
            group.batch.add(gradients, piece.count(None))
        if role.apart:
            group.part.add(gradients, piece.count(None))
        if role.second:
            group.second.append(piece)
        return piece.losses

    def _close(self, step: Step, scaler: GradScaler | None, *, last: bool) -> None:
        """Perturb by what a group's first pass found, and add the gradient of its second pass to ``.grad``."""
        group, parallel = step.group, self.parallel
        scale = 1.0 if scaler is None else scaler.get_scale()
        gradients, part = group.batch.take(scale), group.part.take(scale)
        if not gradients and not step.drawn.left_out:
            raise ValueError("the first pass reached none of the optimizer's parameters; are they the model's?")
        share, exchanged = self._share(step, last=last), parallel.own_eps
        if scaler is not None and not math.isfinite(parallel.norm(list(gradients.values()))):
            share = math.nan  # the scaler, and by the exchange of gradients every rank, sees it and skips the step
        if self._overrides("worth"):  # which every rank asks, whatever overflowed where
            if not exchanged:  # one eps for all, and one norm to judge by: that of the mean
                gradients, exchanged = parallel.mean(gradients, step.parameters), True
            if not self._worth(gradients):
                step.perturbs = False
                found = parallel.mean(gradients, step.parameters) if parallel.own_eps else gradients
                for n, gradient in found.items():
                    self._set_gradient(step, n, gradient, scale)
                return
        if self._reads_first:
            step.first = added(step.first, gradients, share)
        if last:
            for n, remainder in self.remainder(gradients, part).items():
                self._set_gradient(step, n, remainder, scale)
        source = part if group.part.samples else gradients
        reached, eps = self._eps(step, source if exchanged else parallel.mean(source, step.parameters))
        del gradients, part, source
        weights = parallel.local(reached.weights)
        with perturbed(weights, eps, on_move=parallel.moved) as theta, kept_buffers(self.model):
            self.watch.saw_move(theta, weights, eps)
            del eps  # its directions are the first gradient: the second pass needs the memory
            self._second_pass(self._selected(step), share * self.second_weight, scaler, last=last)
        if not last:
            step.closed.append(group)
            step.group = Group()

    def _share(self, step: Step, *, last: bool) -> float:
        """Return a group's weight: in units of m samples; of all samples, once their number is known."""
        if not step.closed or not last:
            return 1.0
        whole = step.group.size + sum(group.size for group in step.closed)
        factor = step.closed[0].size / whole
        self._scale_gradients(step, factor)
        step.first = added({}, step.first, factor)
        return step.group.size / whole

    def _eps(self, step: Step, source: Gradients) -> tuple[Targets, Eps]:
        """Return the drawn tensors that the first pass reached, and their perturbation."""
        drawn, leaves = step.drawn, step.group.leaves
        reached = drawn.only([i for i, n in enumerate(drawn.index) if n in source])
        # a tensor that took no part in the first pass counts as zero, drawn or not
        out = {n for n in drawn.left_out if not leaves or id(step.parameters[n]) in leaves}
        if drawn.left_out and not self.parallel.own_eps:
            out = self.parallel.union(out, len(step.parameters))
        reached = replace(reached, left_out=tuple(n for n in drawn.left_out if n in out))
        with torch.no_grad():
            eps = self.ascent(reached, [source[n] for n in reached.index])
            self.watch.saw_eps(reached.rho, reached.weights, eps)
            return reached, eps

    def _worth(self, gradients: Gradients) -> bool:
        """Ask the method, with the same norm on every rank."""
        norm = self.parallel.norm(list(gradients.values()))
        return self.worth(math.sqrt(self.parallel.mean_number(norm * norm)))

    def _set_gradient(self, step: Step, n: int, gradient: Tensor, scale: float) -> None:
        step.parameters[n].grad = torch.empty_like(step.parameters[n])
        torch.mul(gradient, scale, out=self.parallel.local([step.parameters[n].grad])[0])

    def _selected(self, step: Step) -> list[Kept]:
        """Return the pieces of the second pass, each with the samples to keep of it."""
        every = list(range(len(step.group.second)))
        if not self._overrides("select"):
            return [Kept(piece) for piece in step.group.second]
        if not self.parallel.sharded:
            return self._selected_in(step, every)
        # every rank of a sharded model must run every piece, or the others wait for it: each selects for itself
        return [kept for number in every for kept in self._selected_in(step, [number])]

    def _selected_in(self, step: Step, numbers: list[int]) -> list[Kept]:
        pieces = [step.group.second[i] for i in numbers]
        found = self.select(self._candidates(step, numbers))
        if found is None:
            return [Kept(piece) for piece in pieces]
        if not all(piece.counted for piece in pieces):
            raise ValueError(UNCOUNTED)
        keep, weights = (found.indices, found.weights) if isinstance(found, Weighted) else (found, None)
        self.watch.saw_kept(keep, sum(piece.count(None) for piece in pieces))
        lonely = weights is not None or len(pieces) > 1
        least = 2 if lonely and has_batch_statistics(self.model) else 1
        return [Kept(*kept) for kept in split_by_piece(keep, pieces, weights, least=least)]

    def _candidates(self, step: Step, numbers: list[int]) -> Candidates:
        """Return what a method may choose by among the samples of these pieces."""
        group, pieces = step.group, [step.group.pieces[i] for i in numbers]
        sign = self.sign

        def perturbed_losses() -> Tensor:
            with without_graph():
                again = torch.cat([piece.losses_again() for piece in pieces])
            torch.clear_autocast_cache()  # it would hand the second pass weights without a graph
            return sign * again

        head = None if group.watch is None else group.watch.head(numbers)
        losses = sign * torch.cat([piece.losses for piece in pieces])
        return Candidates(losses, perturbed_losses, step.samples or self.generator, head)

    def _second_pass(self, keeps: list[Kept], share: float, scaler: GradScaler | None, *, last: bool) -> None:
        """Add ``share`` times the mean gradient of the kept samples to ``.grad``; ranks exchange it on the last."""
        count = sum(kept.count for kept in keeps)
        for number, kept in enumerate(keeps, start=1):
            with nullcontext() if last and number == len(keeps) else self.parallel.unsynchronised():
                losses = kept.piece.losses_again(kept.samples)
                if kept.weights is None:
                    _backward(mean_of(losses), share * kept.count / count, scaler)
                else:
                    _backward((losses * kept.weights.to(losses)).sum(), share, scaler)

    # What the flow needs --------------------------------------------------------------------------------------------

    @property
    def sign(self) -> int:
        """Turns losses into what is descended: -1 where the base maximises them."""
        return -1 if all(group.get("maximize") for group in self.param_groups) else 1

    @property
    def _reads_first(self) -> bool:
        """Whether ``combine`` looks at the first gradient; else it is neither kept nor exchanged."""
        return self.whole_gradient and self._overrides("combine")

    def _overrides(self, part: str) -> bool:
        return getattr(type(self), part) is not getattr(SharpnessAware, part)

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
        if gradients := [p.grad for p in step.parameters if p.grad is not None]:
            torch._foreach_mul_(self.parallel.local(gradients), factor)


def _enabled(scaler: GradScaler | None) -> GradScaler | None:
    return scaler if scaler is not None and scaler.is_enabled() else None


def _scaled(loss: Tensor, scaler: GradScaler | None) -> Tensor:
    return loss if scaler is None else scaler.scale(loss)


def _backward(loss: Tensor, share: float, scaler: GradScaler | None) -> None:
    _scaled(loss if share == 1 else loss * share, scaler).backward()  # type: ignore[no-untyped-call]
