"""What does a user call, and what does a method say? A step in three phases, and ``plan`` and ``finish`` in between."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar, cast, final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from .arguments import Bindings, handed_over, micro_batches, refuse_dropped_batches
from .batch import Batch
from .buffers import SavedBuffers
from .checks import GuidanceWarning, checked_choice, checked_count, warn_caller
from .distributed import refusing_hidden_replicas
from .flow import Plan, Step
from .gradients import Gradients
from .indexing import Dims
from .monitor import FirstSteps, Monitor
from .optimizer import Wrapper
from .perturb import perturbed
from .pieces import Closure, LossKind, Piece, joined_pieces

Loss = Callable[..., Any]
Phase = TypeVar("Phase", bound=Callable[..., Any])


def _phase(function: Phase) -> Phase:
    """Run a phase without a graph, all but its passes, and take the step back where it raises."""

    @functools.wraps(function)
    def phase(self: SharpnessAware, *args: Any, **kwargs: Any) -> Any:
        mode = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)
            return function(self, *args, **kwargs)
        except BaseException:
            self._undo()
            raise
        finally:
            torch._C._set_grad_enabled(mode)

    return cast(Phase, phase)


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
        rho: float | None = 0.05,
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
        self._parts_tested = False

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
    def weights(self) -> list[Tensor]:
        """Return all tensors of the optimizer, or the parts of them that lie on this rank."""
        return self.ranks.local(self.parameters())

    # The phases -----------------------------------------------------------------------------------------------------

    @final
    @_phase
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
        piece = handed_over(loss_of, batch, dim, batch_size)
        done = self._run_at_theta(piece, scaler, last=False, perturb=perturb)
        if self._step.plan is not None:
            self._step.bindings.append(Bindings(loss_of))
        losses, outputs = joined_pieces(done, dim)
        return losses if outputs is None else (losses, *outputs)

    @final
    def gradient(self) -> Tensor:
        """Perturb, take the second passes, and return the mean loss at theta; ``.grad`` is final, but still scaled.

        Clip it, unscale it, and call ``step()`` without arguments.
        """
        if not self._accumulating:
            raise ValueError("gradient() has nothing to work on; call accumulate(loss_of, x, y) for each micro-batch")
        return _phase(SharpnessAware._second_passes)(self)

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
        if closure is not None:
            refuse_dropped_batches()
            self._refuse_half_a_step()
            return self._all_phases(micro_batches(closure, batch, dim, batch_size), scaler, dim)
        # torch.distributed.checkpoint takes a step at rate zero to learn what a state looks like
        if not self.has_gradient and any(g.get("lr", 1.0) != 0 for g in self.param_groups):
            raise ValueError(
                "step() without arguments takes the gradient that gradient() left, and there is none; call step(loss_of"
                ", x, y), or accumulate(loss_of, x, y) and gradient() before it"
            )
        return _phase(SharpnessAware._move)(self)

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it in hooks, and they are the base's

    @final
    def passes(
        self,
        *batch: Any,
        scaler: GradScaler | None = None,
        backward: Callable[[Tensor], Any] | None = None,
        dim: Dims = 0,
    ) -> Iterator[Any]:
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
            scaler: A ``GradScaler`` for fp16; after the loop ``scaler.step(optimizer)`` and ``scaler.update()``.
            backward: Called with the loss in place of ``loss.backward()``, by trainers that own it.
        """
        mode, step = torch.is_grad_enabled(), None
        if not batch:
            raise ValueError("passes() takes the batch: for x, y in optimizer.passes(x, y)")
        try:
            torch._C._set_grad_enabled(False)
            piece = handed_over(_body_of_the_loop, batch, dim, None)
            step = self._begin(scaler, backward)
            step.in_turns = True
            for runs in (step.first_passes(piece, last=False), step.finishing(last=True)):
                for run in runs:
                    run.enter()
                    arguments = run.piece.arguments(run.keep)
                    yield arguments if len(arguments) != 1 else arguments[0]
                    if self._step is not step:
                        raise ValueError("another step has begun since this loop was left; begin a new passes(x, y)")
                    if not run.taken:
                        raise ValueError("the loop's body must end with optimizer.backward(loss)")
                    run.leave()
            step.conclude()
        except BaseException:
            if step is None or self._step is step:
                self._undo()
            else:  # the loop was left, and the next step has taken this one back
                mode = torch.is_grad_enabled()
            raise
        finally:
            torch._C._set_grad_enabled(mode)

    @final
    def backward(self, loss: Tensor) -> None:
        """Differentiate the loss of one turn of ``passes``."""
        step: Step | None = self._step
        if step is None or not step.in_turns or step.running is None or step.running.taken:
            raise ValueError("backward(loss) belongs into a loop over optimizer.passes(x, y), once a turn")
        try:
            step.running.take(loss)
        except BaseException:
            self._undo()
            raise

    # What the phases are made of ------------------------------------------------------------------------------------

    @_phase
    def _all_phases(self, pieces: list[Piece], scaler: GradScaler | None, dim: Dims) -> Any:
        for number, piece in enumerate(pieces, start=1):
            done = self._run_at_theta(piece, scaler, last=number == len(pieces))
        step, loss = self._step, self._second_passes()
        if (scaler := step.grad.scaler) is None:
            self._move()
        else:
            scaler.unscale_(self)  # before the base's hooks, which clip
            scaler.step(self)  # which calls step() without arguments, or skips it
            self._forget()
        if len(pieces) > 1 or not done or done[0].outputs is None:
            return loss
        return (loss, *joined_pieces(done, dim)[1])

    @property
    def _accumulating(self) -> bool:
        """Whether ``accumulate`` has begun a step that waits for more, or for ``gradient``."""
        return self._step is not None and not (self._step.ready or self._step.in_turns)

    def _begin(self, scaler: GradScaler | None, backward: Callable[[Tensor], Any] | None = None) -> Step:
        if "base" not in vars(self):  # Fabric's wrapper imitates the class, and has no state
            raise ValueError(
                "this is a trainer's wrapper around the optimizer; use esam.integrations.fabric.backward(fabric, "
                "optimizer, loss_of, x, y), or optimizer.optimizer"
            )
        if torch.is_inference_mode_enabled():
            raise ValueError("a step needs gradients, and torch.inference_mode() allows none; leave it out around it")
        self._refuse_half_a_step()
        if self.has_gradient and self._step.grad.unclaimed:
            warn_caller(
                "the gradient of the step before was not stepped by, and is dropped; to accumulate over micro-batches, "
                "call accumulate(loss_of, x, y) for each of them, then gradient() and step(), once",
                GuidanceWarning,
            )
        self._forget()
        self.ranks.invalidate_caches()  # the weights may have moved since
        if not self._generator_shared:
            self.ranks.share_generator(self.generator)
            self._generator_shared = True
        step = Step(self, scaler if scaler is not None and scaler.is_enabled() else None, backward)
        step.begin()
        return step

    def _run_at_theta(
        self, piece: Piece, scaler: GradScaler | None, *, last: bool, perturb: bool = True
    ) -> list[Piece]:
        """Take the first passes of a micro-batch, and return the pieces that it ran in."""
        step: Step = self._step if self._accumulating else self._begin(scaler)
        done: list[Piece] = []
        with refusing_hidden_replicas(self.model, self.ranks):
            for run in step.first_passes(piece, last=last, perturb=perturb):
                run()
                if run.first:
                    done.append(run.piece)
        return done

    def _second_passes(self) -> Tensor:
        """Take the second passes; return the mean loss at theta."""
        step: Step = self._step
        for bindings in step.bindings:
            bindings.refuse_changes()
        for run in step.finishing(last=True):
            run()
        return step.conclude()

    def _move(self) -> None:
        """Let the base step. The step counts once the base has returned."""
        self.base.step()
        self._step = None
        self.steps += 1
        self.monitor.stepped()

    def _refuse_half_a_step(self) -> None:
        if self._accumulating:
            self._undo()
            raise ValueError(
                "accumulate() has begun a step; end it with gradient() and step() without arguments. What was "
                "accumulated has been dropped"
            )

    def _forget(self) -> None:
        """Drop a step that nobody has stepped by: what a method remembered of it did not happen."""
        step = self._step
        if step is not None:
            step.leave()  # a loop over passes may have been left in the middle
            self.recall(step.memory)
            if not step.ready:
                self.generator.set_state(step.generator)
            self._step = None

    def _undo(self) -> None:
        """Take the step back that is running, if one is."""
        if self._step is not None:
            self._step.undo()
            self._step = None
        if self._ranks is not None:
            self._ranks.reset_after_error()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "monitor": Monitor()}


def _body_of_the_loop(*_: Any) -> Tensor:
    raise AssertionError("the caller's loop runs the passes")
