"""How does one sharpness-aware step flow? Here, once, in three phases; a method says what to do in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from .batch import (
    UNCOUNTED,
    Batch,
    Closure,
    LossKind,
    Pass,
    Piece,
    handed_over,
    joined_pieces,
    random_state,
    reduced,
    set_random_state,
)
from .buffers import SavedBuffers, has_batch_statistics
from .checks import checked_choice, checked_count, checked_number
from .closures import Bindings, refuse_dropped_batches
from .distributed import backward_into, refusing_hidden_replicas
from .gradients import Gradients
from .indexing import Dims
from .monitor import FirstSteps, Monitor
from .optimizer import PERTURB_KEY, RHO_KEY, Wrapper
from .perturb import PassNeeded, Radii, perturbed
from .selection import HeadRecorder, drawn_subset

Loss = Callable[..., Any]


@dataclass(frozen=True)
class Plan:
    """What a step needs."""

    tensors: Radii | None = None
    """The tensors to differentiate and to perturb, each with its radius; None: all, with their groups' radii."""
    subset: float | None = None
    """Share of each batch that runs separately, before the rest: its gradient is ``batch.subset.first``."""
    rest: bool = True
    """Whether the samples outside the subset run at theta."""
    plain: bool = False
    """The step is the base's own, and ``finish`` only adds to its gradient, ``batch.gradient``."""
    head: bool = False
    """Whether a ranking reads what the last linear layer saw."""
    at: Gradients | None = None
    """An eps that needs no gradient: the only pass runs at theta + eps, and ``finish`` is not called."""


class Step:
    """A step that is running, and what an error takes back."""

    def __init__(self, flow: SharpnessAware, scaler: GradScaler | None, backward: Callable[[Tensor], Any] | None):
        self.parameters = flow._parameters()
        self.accelerators = flow.accelerators()
        self.random = random_state(self.accelerators)
        self.generator = flow.generator.get_state()
        self.memory = [getattr(flow, name) for name in flow.remembered]
        self.scaler, self._backward = scaler, backward
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self.scale: Tensor | None = None if scaler is None else scaler.scale(torch.ones((), device=device))
        self.finite: Tensor | None = None
        """With a scaler: 1, or NaN where the first gradient overflowed, so that the step is skipped on every rank."""
        self.plan: Plan | None = None
        self.radii: Radii = {}
        self.wanted: list[int] = []
        """The tensors that the first pass differentiates, by index."""
        self.batch: Batch | None = None
        self.plain: Batch | None = None
        """Micro-batches that are not perturbed (``perturb=False``)."""
        self.unit, self.samples = 0, 0
        """Samples of the first and of all pieces or groups that ``.grad`` holds; it is in units of the first's size."""
        self.losses: list[tuple[Tensor, int]] = []
        self.seen, self.taken = 0, 0
        """Samples of the micro-batches so far, and of those in the subset."""
        self.sparse: set[int] = set()
        self.added: tuple[Tensor, Tensor] | None = None
        """A parameter and the gradient that was put there before the last pass."""
        self.shared = not flow.ranks.replicated
        """Whether ``.grad`` is the same on every rank."""
        self.moved: perturbed | None = None
        self.running: Pass | None = None
        self.bindings: list[Bindings] = []
        self.in_turns = False
        self.ready = False
        """Whether ``.grad`` is final."""
        self._samples: torch.Generator | None = None

    def sample_generator(self, flow: SharpnessAware) -> torch.Generator:
        """Return what draws samples, on each rank its own; masks come from the optimizer's, alike on every rank."""
        if self._samples is None:
            # the state of the optimizer's generator moves by one draw, whatever is drawn from this one
            self._samples = torch.Generator().manual_seed(_drawn_seed(flow.generator) + flow.ranks.rank)
        return self._samples

    def samples_state(self) -> Tensor | None:
        """Return where that generator is; None: it has not been drawn."""
        return None if self._samples is None else self._samples.get_state()

    def set_samples_state(self, state: Tensor | None) -> None:
        """Go back to where it was."""
        if self._samples is not None and state is not None:
            self._samples.set_state(state)
        elif state is None:
            self._samples = None

    def gradients(self, loss: Tensor, inputs: Sequence[Any], flow: SharpnessAware) -> list[Tensor | None]:
        """Return the gradients of a first pass; ``.grad`` is not touched."""
        loss = loss if self.scaler is None else self.scaler.scale(loss)
        if self._backward is None:
            return flow.ranks.gradients(loss, inputs)
        backward = self._backward
        return backward_into(lambda: backward(loss), self.parameters, inputs)

    def backward(self, loss: Tensor, factor: float | Tensor) -> None:
        """Add ``factor`` times the gradient to ``.grad``."""
        if isinstance(factor, Tensor) or factor != 1:
            loss = loss * factor
        loss = loss if self.scaler is None else self.scaler.scale(loss)
        if self._backward is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._backward(loss)

    def mean_loss(self, kind: LossKind) -> Tensor:
        """Return the loss of all samples at theta: their mean, or their sum."""
        if len(self.losses) == 1:
            return self.losses[0][0]
        if kind == "sum":
            return torch.stack([loss for loss, _ in self.losses]).sum()
        total = sum(count for _, count in self.losses)
        return torch.stack([loss * (count / total) for loss, count in self.losses]).sum()


class SharpnessAware(Wrapper):
    """Step by the gradient at theta + eps, with any torch optimizer as the base.

    A method overrides ``plan`` and ``finish``, names what it ``remembered``, and never overrides a phase.

    Args:
        base: Any torch optimizer; it makes the step.
        model: The module that ``base`` trains; its buffers (BatchNorm statistics, ...) move in the first pass only.
        rho: Radius of the neighbourhood; 0 is the base optimizer itself. A group's own goes under ``sam_rho``.
        m: Perturb each group of m samples of a micro-batch by its own eps (m-sharpness); None: one eps for the batch.
        perturbation: Under DistributedDataParallel, "rank": each rank perturbs by its own gradient; "global": all by
            the mean of theirs, for one more exchange of gradients.
        loss: How the loss adds up over samples: "mean" (or one loss a sample); "sum"; or "whole": it is never cut,
            because it depends on the batch as a whole (contrastive losses, graphs, pairs).
        seed: Seed of the optimizer's own generator; None: torch's initial seed.
    """

    needs_losses = False
    """Whether ``finish`` reads single losses: the loss function must then return one a sample."""

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float | None,
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        loss: LossKind = "mean",
        seed: int | None = None,
    ) -> None:
        self.m = None if m is None else checked_count("m", m, "samples")
        self.loss: LossKind = checked_choice("loss", loss, ("mean", "sum", "whole"))  # type: ignore[assignment]
        if loss == "whole" and (m is not None or self.needs_losses):
            raise ValueError(
                f'loss="whole" is never cut, and {type(self).__name__} runs parts of a batch here; leave m out, keep '
                "all samples (gamma=1), or choose SAM"
            )
        super().__init__(base, model, rho=rho, perturbation=perturbation, seed=seed)
        self.monitor: Monitor = FirstSteps(self)
        self.first_pass = False
        """Whether samples run for the first time now: the pass to log, to count, and to carry state from."""
        self._before, self._between = SavedBuffers(), SavedBuffers()
        self._saved_between = False
        self.finishing = False
        """Whether ``finish`` is running: the buffers are put back when it has returned."""
        self._parts_tested = False
        self._initial = {name: getattr(self, name) for name in self.remembered if hasattr(self, name)}

    # What a method says ---------------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """Return what this step needs; None: it is the base's own."""
        return Plan()

    def finish(self, batch: Batch) -> None:
        """Put the gradient together that the base steps by, by ``batch.add`` and ``batch.backward``."""
        raise NotImplementedError

    def evaluation_weights(self) -> AbstractContextManager[Any]:
        """Hold the model, inside this block, at the weights to evaluate and to keep: by default those it has."""
        return nullcontext()

    @staticmethod
    def ineffective(settings: Mapping[str, Any]) -> set[str]:
        """Return the settings that have no effect beside the others."""
        return set()

    # What a method may use ------------------------------------------------------------------------------------------

    @final
    def at(self, eps: Gradients) -> perturbed:
        """Hold the weights at theta + eps inside a ``with`` block; leaving it restores theta bit for bit."""
        step: Step = self._step
        weights = self.ranks.local([step.parameters[n] for n in eps.index])
        self.monitor.saw_eps(weights, eps)
        step.moved = perturbed(weights, eps.tensors, on_move=self.ranks.invalidate_caches)
        return step.moved

    @final
    def parameters(self) -> list[Tensor]:
        """Return all tensors of the optimizer; an index counts them."""
        return self._parameters()

    @final
    def weights(self) -> list[Tensor]:
        """Return the same, or the parts of them that lie on this rank."""
        return self.ranks.local(self._parameters())

    @final
    def radii(self) -> Radii:
        """Return the radius of each trainable tensor that has one, by its index."""
        radii: dict[int, float] = {}
        start = 0
        for group in self.param_groups:
            rho = checked_number(RHO_KEY, group.get(RHO_KEY, self.rho or 0.0)) if group.get(PERTURB_KEY, True) else 0.0
            if rho > 0:
                rho = -rho if group.get("maximize") else rho
                radii.update((start + n, rho) for n, p in enumerate(group["params"]) if p.requires_grad)
            start += len(group["params"])
        return radii

    # The phases -----------------------------------------------------------------------------------------------------

    @final
    def accumulate(
        self,
        loss_of: Loss | Closure,
        *batch: Any,
        scaler: GradScaler | None = None,
        batch_size: int | None = None,
        dim: Dims = 0,
        perturb: bool = True,
    ) -> Any:
        """Take the first pass of one micro-batch; return its losses at theta, detached, and what else it returned.

        Args:
            loss_of: Called with the batch, or with some samples of it; returns one loss a sample, or their mean (or
                as ``loss=`` says), graph attached; or a tuple of that and anything else, such as the outputs.
            batch: Its arguments: tensors, or dicts, tuples and objects that hold some. Without any, ``loss_of`` is a
                closure of the samples to keep: it is called with ``slice(None)`` or with indices on the CPU, and reads
                the batch itself.
            scaler: A ``GradScaler`` for fp16.
            batch_size: How many samples a closure's batch has: for methods that run parts of it, and where the
                micro-batches differ in size and the closure returns a mean.
            dim: The dimension of the samples; or one for each argument, None for one that is handed on whole.
            perturb: False: this loss is not perturbed; its gradient at theta is added to the others'.
        """
        mode = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)  # all but the passes
            piece = handed_over(loss_of, batch, dim, batch_size)
            done = self._accumulate(piece, scaler, last=False, perturb=perturb)
            if not batch and self._step.plan is not None:
                self._step.bindings.append(Bindings(loss_of))
            losses, outputs = joined_pieces(done, dim)
            return losses if outputs is None else (losses, *outputs)
        except BaseException:
            self._undo()
            raise
        finally:
            torch._C._set_grad_enabled(mode)

    @final
    def gradient(self) -> Tensor:
        """Perturb, take the second passes, and return the mean loss at theta; ``.grad`` is final, but still scaled.

        Clip it, unscale it, and call ``step()`` without arguments.
        """
        step: Step | None = self._step
        if step is None or step.ready:
            raise ValueError("gradient() has nothing to work on; call accumulate(loss_of, x, y) for each micro-batch")
        mode = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)  # all but the passes
            for bindings in step.bindings:
                bindings.refuse_changes()
            for run in self._finishing(step, last=True):
                run()
            self._conclude(step)
            return step.mean_loss(self.loss)
        except BaseException:
            self._undo()
            raise
        finally:
            torch._C._set_grad_enabled(mode)

    @final
    def step(
        self,
        closure: Loss | Closure | Sequence[Closure] | None = None,
        *batch: Any,
        scaler: GradScaler | None = None,
        batch_size: int | Sequence[int] | None = None,
        dim: Dims = 0,
    ) -> Any:
        """Take one step; return the mean loss at theta, detached, and what else the function returned there.

        Without arguments, it steps by what ``gradient()`` or ``passes`` left.

        Args:
            closure: The loss function, as for ``accumulate``; trainers pass it by this name. A list of closures stands
                for the micro-batches of one batch.
            batch, dim: As for ``accumulate``.
            scaler: A ``GradScaler`` for fp16: an overflow in either pass skips the step. Call ``scaler.update()`` after
                it, as in any fp16 loop.
            batch_size: As for ``accumulate``; one number a closure.

        There is no need to zero ``.grad`` before; after it, ``.grad`` holds the gradient that the base used.
        """
        if closure is None:
            return self._step_by_gradient()
        refuse_dropped_batches()
        self._forget()
        mode = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)  # all but the passes
            pieces = self._micro_batches(closure, batch, batch_size, dim)
            for number, piece in enumerate(pieces, start=1):
                done = self._accumulate(piece, scaler, last=number == len(pieces))
            step: Step = self._step
            for run in self._finishing(step, last=True):
                run()
            self._conclude(step)
            loss = step.mean_loss(self.loss)
            if step.scaler is None:
                self._move()
            else:
                step.scaler.unscale_(self)  # before the base's hooks, which clip
                step.scaler.step(self)  # which calls step() without arguments, or skips it
                self._forget()
        except BaseException:
            self._undo()
            raise
        finally:
            torch._C._set_grad_enabled(mode)
        if len(pieces) > 1 or not done or done[0].outputs is None:
            return loss
        return (loss, *joined_pieces(done, dim)[1])

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it in hooks, and they are the base's

    @final
    def passes(self, *batch: Any, backward: Callable[[Tensor], Any] | None = None, dim: Dims = 0) -> Iterator[Any]:
        """Yield the batch, or parts of it, once for each pass of a step; the loop's body is the loss function.

        ```python
        for x, y in optimizer.passes(x, y):
            loss = F.cross_entropy(model(x), y)
            optimizer.backward(loss)
        optimizer.step()
        ```

        Weights are theta + eps in some turns, and theta after the loop, also where its body raises. ``first_pass`` is
        True in the turns to log.

        Args:
            batch, dim: As for ``accumulate``.
            backward: Called with the loss in place of ``loss.backward()``, by trainers that own it.
        """
        mode = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)  # all but the passes
            self._forget()
            piece = handed_over(_body_of_the_loop, batch, dim, None)
            step = self._begin(None, backward)
            step.in_turns = True
            for runs in (self._first_passes(step, piece, last=False), self._finishing(step, last=True)):
                for run in runs:
                    run.enter()
                    arguments = run.piece.arguments(run.keep)
                    yield arguments if len(arguments) != 1 else arguments[0]
                    if step.running is not None:
                        raise ValueError("the loop's body must end with optimizer.backward(loss)")
                    run.leave()
            self._conclude(step)
        except BaseException:
            self._undo()
            raise
        finally:
            torch._C._set_grad_enabled(mode)

    @final
    def backward(self, loss: Tensor) -> None:
        """Differentiate the loss of one turn of ``passes``."""
        run: Pass | None = None if self._step is None else self._step.running
        if run is None or not self._step.in_turns:
            raise ValueError("backward(loss) belongs into a loop over optimizer.passes(x, y), once a turn")
        try:
            run.take(loss)
            self._step.running = None
        except BaseException:
            self._undo()
            raise

    # The flow -------------------------------------------------------------------------------------------------------

    def _begin(self, scaler: GradScaler | None, backward: Callable[[Tensor], Any] | None = None) -> Step:
        if "base" not in vars(self):  # Fabric's wrapper imitates the class, and has no state
            raise ValueError(
                "this is a trainer's wrapper around the optimizer; use esam.integrations.fabric.backward(fabric, "
                "optimizer, loss_of, x, y), or optimizer.optimizer"
            )
        if torch.is_inference_mode_enabled():
            raise ValueError("a step needs gradients, and torch.inference_mode() allows none; leave it out around it")
        self._forget()
        ranks = self.ranks
        ranks.invalidate_caches()  # the weights may have moved since
        if not self._generator_shared:
            ranks.share_generator(self.generator)
            self._generator_shared = True
        step = Step(self, scaler if scaler is not None and scaler.is_enabled() else None, backward)
        for p in step.parameters:
            p.grad = None
        self._before.save(self.model)
        self._saved_between = False
        self._step = step
        step.radii = self.radii()
        step.plan = plan = self.plan() if step.radii or self.rho is None else None
        if plan is not None and plan.at is None and not plan.plain:
            radii = step.radii if plan.tensors is None else plan.tensors
            trainable = [n for n, p in enumerate(step.parameters) if p.requires_grad]
            step.wanted = trainable if plan.tensors is None or self._needs_whole_backward() else list(radii)
            step.batch = Batch(self, step, radii)
            if plan.subset is not None:
                step.batch.subset = Batch(self, step, radii, step.batch)
                step.sample_generator(self)
        return step

    def _accumulate(self, piece: Piece, scaler: GradScaler | None, *, last: bool, perturb: bool = True) -> list[Piece]:
        """Take the first passes of a micro-batch, and return the pieces that it ran in."""
        step: Step = self._begin(scaler) if self._step is None or self._step.ready else self._step
        done: list[Piece] = []
        hidden = refusing_hidden_replicas(self.model, self.ranks)
        with hidden:
            for run in self._first_passes(step, piece, last=last, perturb=perturb):
                run()
                if run.first:
                    done.append(run.piece)
        return done

    def _first_passes(self, step: Step, piece: Piece, *, last: bool, perturb: bool = True) -> Iterator[Pass]:
        """Yield the passes of a micro-batch at theta; each has run when the next is asked for."""
        plan = step.plan
        if not perturb:
            step.plain = step.plain or Batch(self, step, {})
            yield self._first(step, piece, [step.plain], again=False)
        elif plan is None or plan.at is not None or plan.plain:
            with nullcontext() if plan is None or plan.at is None else self.at(plan.at):
                yield self._plain(step, piece, sync=last and self.ranks.replicated and step.plain is None)
        elif self.loss == "whole" or (plan.subset is None and self.m is None):
            assert step.batch is not None
            yield self._first(step, piece, [step.batch, step.batch.subset])
        elif not piece.counted or piece.size is None:
            raise ValueError(UNCOUNTED)
        elif plan.subset is not None:
            yield from self._in_parts(step, piece, plan.subset, rest=plan.rest)
        else:
            yield from self._in_groups(step, piece)

    def _in_parts(self, step: Step, piece: Piece, share: float, *, rest: bool) -> Iterator[Pass]:
        """Run a micro-batch in two parts: the subset first, then the rest."""
        batch, size = step.batch, piece.count(None)
        assert batch is not None
        count = self._subset_count(step, size, share)
        self.monitor.saw_kept(count, size)
        if not rest:
            piece.remember_state(self.accelerators())
            batch.pieces.append(piece)
            batch.samples += size
        if count in (0, size):
            into = [batch] * rest + [batch.subset] * (count > 0)
            if into:
                yield self._first(step, piece, into, again=count > 0)
            return
        chosen, others = drawn_subset(size, count, step.sample_generator(self))
        if rest:
            yield from self._tested(piece, step)
        few = rest and count < size - count  # the smaller part must not update running statistics
        yield self._first(step, piece.cut(chosen), [batch, batch.subset] if rest else [batch.subset], quiet=few)
        if rest:
            yield self._first(step, piece.cut(others), [batch], again=False, quiet=not few)
            piece.release()

    def _subset_count(self, step: Step, size: int, share: float) -> int:
        """Return how many samples of a micro-batch are in the subset: the share of all so far, so perhaps none."""
        step.seen += size
        # every rank of a sharded model must run as many passes
        count = max(round(share * step.seen) - step.taken, int(step.taken == 0 or self.ranks.sharded))
        count = min(count, size)
        if (count == 1 < size or size - count == 1) and self.has_batch_statistics():  # which one sample has not
            count = max(count, 2)
            count = size if size - count == 1 else count
        step.taken += count
        return count

    def _in_groups(self, step: Step, piece: Piece) -> Iterator[Pass]:
        """Run a micro-batch in groups of m; a group is finished when the next starts, the last by ``gradient``."""
        size, m = piece.count(None), self.m or 1
        starts = list(range(0, size, m))
        if len(starts) > 1 and size - starts[-1] == 1 and self.has_batch_statistics():
            starts.pop()  # one sample alone has no statistics: it joins its neighbours
        if len(starts) > 1:
            yield from self._tested(piece, step)
        for start, stop in zip(starts, [*starts[1:], size], strict=True):
            if step.batch is not None and step.batch.samples:
                yield from self._finishing(step, last=False)
                step.batch = Batch(self, step, step.batch.radii)
            part = piece if stop - start == size else piece.cut(torch.arange(start, stop, device="cpu"))
            yield self._first(step, part, [step.batch])  # type: ignore[list-item]

    def _tested(self, piece: Piece, step: Step) -> Iterator[Pass]:
        """Once, run the whole micro-batch beside its parts: the monitor compares the losses."""
        if not self._parts_tested and not self.needs_losses:
            self._parts_tested = True
            piece.remember_state(self.accelerators())
            size = piece.count(None)
            yield Pass(
                self,
                piece,
                lambda losses: self.monitor.saw_whole(reduced(losses, self.loss), size, step.losses),
                graph=False,
            )

    def _plain(self, step: Step, piece: Piece, *, sync: bool) -> Pass:
        """Return the pass that adds a piece's gradient to ``.grad``, in units of the first piece's size."""

        def accept(losses: Tensor) -> None:
            loss, count = reduced(losses, self.loss), piece.count(None)
            step.losses.append((loss.detach(), count))
            step.unit, step.samples = step.unit or count, step.samples + count
            factor = 1.0 if self.loss == "sum" else count / step.unit
            if sync and self.loss != "sum" and step.samples != count:  # ranks differ in size: scale, then exchange
                self._scale_gradients(step, step.unit / step.samples)
                factor *= step.unit / step.samples
            step.backward(loss, factor)
            step.shared = step.shared or sync

        return Pass(self, piece, accept, first=True, sync=sync, quiet=False)

    def _first(
        self, step: Step, piece: Piece, batches: Sequence[Batch], *, again: bool = True, quiet: bool = False
    ) -> Pass:
        """Return the pass that takes a piece's gradient at theta into these batches; ``.grad`` is not touched.

        Nothing is computed for tensors that are not wanted, and backward stops at the earliest that is.
        """
        batches = list({id(batch): batch for batch in batches}.values())
        recorder = None
        if step.plan is not None and step.plan.head and again:
            recorder = batches[0].recorder = batches[0].recorder or HeadRecorder(self.model)
        plain = batches[0] is step.plain
        index = step.wanted if not plain else [n for n, p in enumerate(step.parameters) if p.requires_grad]

        def accept(losses: Tensor) -> None:
            loss, inputs = reduced(losses, self.loss), [step.parameters[n] for n in index]
            if not plain:
                step.losses.append((loss.detach(), piece.count(None)))
            if recorder is not None:
                inputs.append(recorder.take_output(len(losses)))
            found = step.gradients(loss, inputs, self)
            if recorder is not None:
                each = 1 if self.loss == "sum" else len(losses)
                recorder.give_gradient(found.pop(), each if step.scale is None else each / step.scale)
            step.sparse.update(n for n, g in zip(index, found, strict=True) if g is not None and g.is_sparse)
            gradients = self.ranks.named(index, found)
            if not plain and step.plan is not None and step.plan.tensors is not None:
                gradients = gradients.only(step.plan.tensors)
            for batch in batches:
                batch.add_first(piece, gradients, again=again)

        return Pass(self, piece, accept, first=True, quiet=quiet, recorder=recorder)

    def _finishing(self, step: Step, *, last: bool) -> Iterator[Pass]:
        """Let the method put a batch's gradient together; yield its passes where the caller's loop runs them."""
        batch, plain = step.batch, step.plain
        if last and plain is not None:
            plain.close(None if step.scale is None else 1 / step.scale)
        if batch is None or (last and not batch.samples):
            self._finish_plain(step)
            return
        self._close(step, batch, last=last)
        if last and plain is not None:
            plain.add(plain.first)
        self.finishing = True
        yield from self._finish_in_turns(step, batch) if step.in_turns else self._finish_at_once(batch)
        self.finishing = False
        if self._saved_between:
            self.put_buffers_back()

    def _finish_at_once(self, batch: Batch) -> Iterator[Pass]:
        self.finish(batch)
        yield from ()

    def _finish_in_turns(self, step: Step, batch: Batch) -> Iterator[Pass]:
        """Call ``finish`` again for each of its passes, which gets one pass further: the caller's loop runs them."""
        batch.log, memory, generator = [], [getattr(self, n) for n in self.remembered], self.generator.get_state()
        samples = step.samples_state()
        while True:
            batch.replayed = 0
            try:
                self.finish(batch)
                return
            except PassNeeded as needed:
                run: Pass = needed.args[0]
            yield run
            if step.moved is not None:
                step.moved.restore()
            self._recall(memory)
            self.generator.set_state(generator)
            step.set_samples_state(samples)

    def _close(self, step: Step, batch: Batch, *, last: bool) -> None:
        """Make a batch's first gradients those of means, and say what the batch counts for in the step."""
        batch.last = last
        inverse_scale = None if step.scale is None else 1 / step.scale
        for part in {id(b): b for b in (batch, batch.subset)}.values():
            part.close(inverse_scale)
        if not batch.first and not batch.subset.first and (step.plan is None or step.plan.tensors is None):
            raise ValueError("the first pass reached none of the optimizer's parameters; are they the model's?")
        if step.scale is not None:
            norm = (batch.first if batch.first else batch.subset.first).norm()
            step.finite = torch.where(norm.isfinite(), 1.0, torch.nan)
        if not self.ranks.own_eps:
            same = batch.subset is batch
            batch.first = self.ranks.mean(batch.first, step.parameters)
            batch.subset.first = batch.first if same else self.ranks.mean(batch.subset.first, step.parameters)
        if self.loss == "sum":
            return
        step.unit, step.samples = step.unit or batch.samples, step.samples + batch.samples
        if last and step.samples != batch.samples:
            self._scale_gradients(step, step.unit / step.samples)
        batch.share = batch.samples / (step.samples if last else step.unit)

    def _finish_plain(self, step: Step) -> None:
        """Make ``.grad`` the gradient of the mean over all pieces."""
        if not step.shared or not self.ranks.replicated:
            if self.loss != "sum" and step.unit != step.samples:
                self._scale_gradients(step, step.unit / step.samples)
            if step.plain is not None:
                step.plain.add(step.plain.first)
        if step.plan is not None and step.plan.plain:
            self._share_gradient(step)
            self.finish(Batch(self, step, step.radii))

    def _share_gradient(self, step: Step) -> None:
        """Make ``.grad`` the mean over the ranks, where no backward has."""
        if not step.shared:
            grads = [p.grad for p in step.parameters]
            index = [n for n, g in enumerate(grads) if g is not None]
            for n, mean in self.ranks.mean(self.ranks.named(index, [grads[n] for n in index]), step.parameters):
                step.parameters[n].grad = mean
            step.shared = True

    def _conclude(self, step: Step) -> None:
        """Make ``.grad`` final."""
        self._share_gradient(step)
        if all(p.grad is None for p in step.parameters):
            raise ValueError(
                "no parameter has a gradient after the passes; hooks that step inside backward "
                "(register_post_accumulate_grad_hook) cannot be combined with a second pass: leave them out"
            )
        self.ranks.share_buffers()
        step.batch = step.plain = None
        step.bindings = []
        step.ready = True

    def _step_by_gradient(self) -> None:
        step: Step | None = self._step
        # torch.distributed.checkpoint takes a step at rate zero to learn what a state looks like
        if (step is None or not step.ready) and any(g.get("lr", 1.0) != 0 for g in self.param_groups):
            raise ValueError(
                "step() without arguments takes the gradient that gradient() left, and there is none; call step(loss_of"
                ", x, y), or accumulate(loss_of, x, y) and gradient() before it"
            )
        try:
            self._move()
        except BaseException:
            self._undo()
            raise

    def _move(self) -> None:
        """Let the base step. The step counts once the base has returned."""
        self.base.step()
        self._step = None
        self.steps += 1
        self.monitor.stepped()

    def _forget(self) -> None:
        """Drop a step that nobody has stepped by: what a method remembered of it did not happen."""
        step, self._step = self._step, None
        if step is not None:
            self._recall(step.memory)

    def _recall(self, memory: list[Any]) -> None:
        for name, value in zip(self.remembered, memory, strict=True):
            setattr(self, name, value)

    def _undo(self) -> None:
        """Take a whole step back: weights, buffers, gradients, random numbers, and what the method remembered."""
        step: Step | None = self._step
        if step is not None:
            if step.moved is not None:
                step.moved.restore()
            if step.running is not None:
                step.running.leave()
            self.finishing = False
            for p in step.parameters:
                p.grad = None
            self._before.put_back()
            self.generator.set_state(step.generator)
            set_random_state(step.random)
            self._recall(step.memory)
            self._step = None
        if self._ranks is not None:
            self._ranks.reset_after_error()

    # What the flow needs --------------------------------------------------------------------------------------------

    @property
    def sign(self) -> int:
        """Turns losses into what is descended: -1 where the base maximises them."""
        return -1 if all(group.get("maximize") for group in self.param_groups) else 1

    def has_batch_statistics(self) -> bool:
        """Tell whether some layer normalises by the samples at hand."""
        return has_batch_statistics(self.model)

    def accelerators(self) -> list[torch.device]:
        """Return the devices, other than the CPU, that the parameters are on."""
        step: Step | None = self._step
        if step is not None:
            return step.accelerators
        return list({p.device: None for g in self.param_groups for p in g["params"] if not p.is_cpu})

    def enter_pass(self, run: Pass) -> None:
        """Know which pass is running."""
        self.first_pass = run.first
        if self._step is not None:
            self._step.running = run

    def save_buffers(self) -> None:
        """Copy the buffers, where none of the copies shows them as they are."""
        if not self._saved_between:
            self._between.save(self.model)
            self._saved_between = True

    def put_buffers_back(self) -> None:
        """Give the buffers the values that ``save_buffers`` copied."""
        self._between.put_back()

    def buffers_moved(self) -> None:
        """Know that the copy is out of date."""
        self._saved_between = False

    def _needs_whole_backward(self) -> bool:
        """Tell whether some tensors cannot be differentiated alone.

        On the CPU and in channels_last, the backward of GroupNorm crashes the process (torch 2.13) when the gradient
        of its weight or bias is wanted and that of its input is not.
        """
        return any(isinstance(layer, nn.GroupNorm) for layer in self.model.modules())

    def _micro_batches(self, loss_of: Any, batch: tuple[Any, ...], batch_size: Any, dim: Dims) -> list[Piece]:
        if not isinstance(loss_of, (list, tuple)):
            return [handed_over(loss_of, batch, dim, batch_size)]
        if batch:
            raise ValueError("a list of closures takes no batch; call accumulate(loss_of, x, y) for each micro-batch")
        sizes = [None] * len(loss_of) if batch_size is None else batch_size
        if not loss_of or not isinstance(sizes, (list, tuple)) or len(sizes) != len(loss_of):
            raise ValueError(f"batch_size must have one number for each of {len(loss_of)} closures, got {batch_size}")
        return [handed_over(one, (), dim, size) for one, size in zip(loss_of, sizes, strict=True)]

    def _scale_gradients(self, step: Step, factor: float) -> None:
        gradients = [p.grad for p in step.parameters if p.grad is not None]
        if gradients and factor != 1:
            torch._foreach_mul_(self.ranks.local(gradients), factor)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "monitor": Monitor()}


def _drawn_seed(generator: torch.Generator) -> int:
    """Draw a number on the host, also where a mode makes fake tensors of all others."""
    with nullcontext() if _get_current_dispatch_mode() is None else _disable_current_modes():
        return int(torch.randint(2**62, (), generator=generator, device="cpu"))


def _body_of_the_loop(*_: Any) -> Tensor:
    raise AssertionError("the caller's loop runs the passes")
