"""How does Lightning take a sharpness-aware step? By a callback; the module and ``training_step`` stay as they are."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
    from lightning.pytorch.trainer import call
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError as error:
    raise ImportError("esam.integrations.lightning needs lightning: pip install torch-esam[lightning]") from error

from esam.optim import SharpnessAware as Optimizer


class SharpnessAware(Callback):
    """Let a Trainer step by esam's optimizers under automatic optimization.

    Return ``ESAM(torch.optim.SGD(...), self)`` from ``configure_optimizers``. Precision, accumulation, clipping, DDP,
    schedulers, checkpoints and ``global_step`` are the trainer's own. An accumulated batch is one step on the union of
    its micro-batches, also where an epoch ends inside of it.

    ``training_step`` runs once for each pass, on the samples of that pass. What it logs, and the metrics that it
    updates, count in the first alone. A ranking that reads single losses (ESAM's by default) needs them as well:
    ``return {"loss": losses.mean(), "losses": losses}``.
    """

    def __init__(self) -> None:
        self._undo = ExitStack()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the place of the loop's own closure."""
        self._undo.close()
        optimizer = _checked_optimizer(trainer, pl_module)
        wrapped = trainer.strategy.model
        if isinstance(wrapped, DistributedDataParallel):
            optimizer.model = wrapped
        loop = trainer.fit_loop.epoch_loop.automatic_optimization
        make_closure = type(loop)._make_closure

        def ours(kwargs: Any, opt: Any, batch_idx: int) -> Closure:
            plain: Closure = make_closure(loop, kwargs, opt, batch_idx)
            # an epoch without backward, as weight averaging adds for BatchNorm, is no step of ours
            return plain if loop._skip_backward else _PassesClosure(trainer, pl_module, optimizer, kwargs)

        self._undo.enter_context(_replaced(loop, "_make_closure", ours))
        self._undo.enter_context(_step_with_closure(optimizer, lambda: loop._skip_backward))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the loop its own closure back."""
        self._undo.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the loop its own closure back."""
        self._undo.close()


class _PassesClosure(Closure):
    """What the trainer calls once a micro-batch: its first pass, and with the last one the gradient of the step."""

    def __init__(
        self, trainer: Trainer, module: LightningModule, optimizer: Optimizer, kwargs: Mapping[str, Any]
    ) -> None:
        self._trainer, self._module, self._optimizer = trainer, module, optimizer
        self._batch, *self._rest = kwargs.values()
        self._outputs: list[Any] = []

    def closure(self, *args: Any, **kwargs: Any) -> ClosureResult:
        """Take the micro-batch's passes; the gradient is final after the last of the window."""
        trainer, optimizer = self._trainer, self._optimizer
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        losses = optimizer.accumulate(self._run, self._batch, scaler=scaler)
        if not trainer.fit_loop._should_accumulate():
            optimizer.gradient()
            call._call_callback_hooks(trainer, "on_after_backward")
            call._call_lightning_module_hook(trainer, "on_after_backward")
        output = self._outputs[-1]
        named = output if isinstance(output, Mapping) else {}
        loss = _loss_of(output).detach() if len(self._outputs) == 1 else losses.mean()
        extra = {name: value for name, value in named.items() if name not in ("loss", "losses")}
        return ClosureResult(loss / trainer.accumulate_grad_batches, extra=extra)

    def _run(self, batch: Any) -> Tensor:
        """Run a batch, or some samples of it, as the trainer would."""
        first = self._optimizer.first_pass
        with nullcontext() if first else _quiet(self._module):
            output = call._call_strategy_hook(self._trainer, "training_step", batch, *self._rest)
        if first:
            self._outputs.append(output)
        return _losses_of(output) if self._optimizer.needs_losses else _loss_of(output)


def _checked_optimizer(trainer: Trainer, module: LightningModule) -> Optimizer:
    """Return the optimizer, or say what this callback cannot work with."""
    if not module.automatic_optimization:
        raise ValueError(
            "SharpnessAware() is for automatic optimization; under manual optimization leave it out and call "
            "self.optimizers(use_pl_optimizer=False).step(loss_of, x, y), or its phases accumulate, gradient, step"
        )
    kinds = [type(optimizer).__name__ for optimizer in trainer.optimizers]
    optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"SharpnessAware() wants one of esam's optimizers from configure_optimizers, got {', '.join(kinds) or None}"
            "; return esam.SAM(torch.optim.SGD(...), self), or leave the callback out"
        )
    if trainer.strategy.handles_gradient_accumulation:
        raise ValueError(
            f"{type(trainer.strategy).__name__} runs backward and step by itself, so there is no place for a second "
            'pass; use strategy="ddp" or a single device'
        )
    if is_overridden("backward", module):
        raise ValueError(
            f"{type(module).__name__} overrides backward, which the passes of a sharpness-aware step do not call; move "
            "what it does into training_step or on_after_backward"
        )
    return optimizer


@contextmanager
def _replaced(instance: Any, name: str, value: Any) -> Iterator[None]:
    """Let an instance have another attribute in this block; what it had itself, or from its class, comes back."""
    attributes = vars(instance)
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        attributes.pop(name, None)
        attributes.update(before)


def _step_with_closure(optimizer: Optimizer, idle: Callable[[], bool]) -> AbstractContextManager[None]:
    """Let ``step`` take the closure of a precision plugin, which runs the passes and clips.

    While ``idle``, there was no backward, and there is nothing to step by.
    """
    inner = optimizer.step  # a scheduler's, where there is one

    @wraps(inner)
    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        result = None if closure is None else closure()
        if not idle():
            inner()
        return result

    return _replaced(optimizer, "step", types.MethodType(step, optimizer))  # as a scheduler puts its own there


def _loss_of(output: Any) -> Tensor:
    """Return the loss that ``training_step`` returned, or say what is wrong."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"training_step returned {'no loss' if loss is None else type(loss).__name__}; a batch cannot be skipped "
            "inside a sharpness-aware step: return a loss, and leave unwanted batches out of the loader"
        )
    return loss


def _losses_of(output: Any) -> Tensor:
    """Return the losses of single samples that ``training_step`` returned, or say what is wrong."""
    loss, losses = _loss_of(output), output.get("losses") if isinstance(output, Mapping) else None
    if not isinstance(losses, Tensor):
        raise ValueError(
            'this method ranks samples: let training_step return {"loss": losses.mean(), "losses": losses}, with one '
            'loss for each sample; or choose a method that ranks none: SAM, or ESAM(..., ranking="random")'
        )
    mean = losses.detach().float().mean()
    if not torch.allclose(mean, loss.detach().float(), rtol=1e-2, atol=1e-6, equal_nan=True):  # the mean, in any type
        raise ValueError(
            f"training_step returned a loss of {loss.item():.6g} where the mean of its losses is {mean.item():.6g}; "
            "the passes run backward from the losses, so everything that is trained on belongs into them"
        )
    return losses


@contextmanager
def _quiet(module: LightningModule) -> Iterator[None]:
    """Log nothing in this block, and leave metrics as they were: their samples have been counted."""
    metrics = [vars(metric) for metric in module.modules() if hasattr(metric, "_update_count")]
    before = [dict(attributes) for attributes in metrics]
    held = [value for attributes in before for value in attributes.values()]  # changed in place, or replaced
    tensors = [(value, value.clone()) for value in held if isinstance(value, Tensor)]
    lists = [(value, list(value)) for value in held if isinstance(value, list)]
    try:
        with _replaced(module, "log", lambda *_, **__: None):
            yield
    finally:
        for attributes, values in zip(metrics, before, strict=True):
            attributes.update(values)
        with torch.no_grad():
            for tensor, value in tensors:
                tensor.copy_(value)
        for items, kept in lists:
            items[:] = kept
