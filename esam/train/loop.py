"""What happens in an epoch? The one training loop, for every method and for a user's own model and data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from esam.optim import Plain, SharpnessAware
from esam.optim.randomness import random_state, replayed

from .checkpoint import Checkpoint
from .names import did_you_mean

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Schedule = Callable[[float], float]

PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@runtime_checkable
class Epochs(Protocol):
    """Batches that can give any epoch again; a plain iterable such as a DataLoader will do too."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Give the batches of epoch ``number``, counted from 1."""

    def __len__(self) -> int: ...


@dataclass
class Progress:
    """How far a run has come; sums over the whole run."""

    epoch: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of this process: steadier than the clock where the machine is shared."""
    images: int = 0
    forwards: float = 0.0
    """Forward passes, in passes over the training data."""
    backwards: float = 0.0
    best: float = 0.0
    """The best test accuracy so far."""


def cosine(progress: float) -> float:
    """Return the factor on the learning rate: from 1 to 0 along half a cosine."""
    return (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def per_sample_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    train: Epochs | Iterable[Batch],
    test: Iterable[Batch] | None = None,
    *,
    epochs: int,
    loss: Loss = per_sample_cross_entropy,
    schedule: Schedule | LRScheduler | None = None,
    budget: float | None = None,
    precision: str = "float32",
    evaluate_every: int = 1,
    checkpoint: Checkpoint | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> Progress:
    """Train, and return how far it came.

    Args:
        model: Any module; it stays on its device, and the batches are moved there.
        optimizer: Sharpness-aware, or any torch optimizer, which then trains as it is.
        train: An object with ``epoch(number)``, or any iterable of ``(inputs, targets)``.
        test: Evaluated in eval mode after every ``evaluate_every`` epochs, and after the last.
        epochs: How many to train, those before a resume included.
        loss: ``(outputs, targets)`` -> one loss per sample.
        schedule: A factor on the learning rate as a function of progress in [0, 1], set at each step; or a torch
            scheduler, stepped after each epoch.
        budget: Stop after this many seconds of training, whatever ``epochs`` says.
        evaluate_every: How often to evaluate, in epochs.
        precision: float32, bf16 (autocast) or fp16 (autocast and a ``GradScaler``).
        checkpoint: Where to save after each epoch. If it holds a state, training continues from there, bit for bit:
            torch's random numbers and a DataLoader's own generator go on where they were.
        on_epoch: Called with each epoch's metrics, before the checkpoint is written.
    """
    if epochs < 0 or (budget is not None and budget <= 0):
        raise ValueError(f"epochs must be >= 0 and budget None or > 0 seconds, got {epochs} and {budget}")
    if evaluate_every < 1:
        raise ValueError(f"evaluate_every must be 1 epoch or more, got {evaluate_every}")
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS)
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.{hint}")
    if isinstance(schedule, ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau wants a loss and fit's schedules take none; leave schedule out and call "
            'scheduler.step(metrics["test_loss"]) in on_epoch'
        )
    device = next(model.parameters()).device
    scaler = GradScaler(device.type) if precision == "fp16" else None
    stepper = optimizer if isinstance(optimizer, SharpnessAware) else Plain(optimizer, model)
    for group in stepper.param_groups:
        group.setdefault("initial_lr", group["lr"])
    parts = {"model": model, "optimizer": stepper, "scaler": scaler, "schedule": schedule}
    stateful = {k: v for k, v in parts.items() if hasattr(v, "state_dict")}
    progress = _resumed(checkpoint, stateful, device, train)
    while progress.epoch < epochs and (budget is None or progress.seconds < budget):
        metrics = _train_epoch(model, stepper, train, progress, epochs, loss, schedule, budget, precision, scaler)
        if isinstance(schedule, LRScheduler):
            schedule.step()
        over = progress.epoch >= epochs or (budget is not None and progress.seconds >= budget)
        if test is not None and (over or progress.epoch % evaluate_every == 0):
            metrics |= evaluate(model, test, loss, precision=precision)
            progress.best = max(progress.best, metrics.get("test_accuracy", 0.0))
        if on_epoch is not None:
            on_epoch(metrics)
        if checkpoint is not None:
            states = {name: part.state_dict() for name, part in stateful.items()}
            checkpoint.save({**states, "progress": asdict(progress), "random": _random_state(device, train)})
    return progress


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[Batch], loss: Loss = per_sample_cross_entropy, *, precision: str = "float32"
) -> dict[str, float]:
    """Return test loss and, where the targets are classes, accuracy.

    In eval mode; the model's modes and the random stream come back as they were.
    """
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    device = next(model.parameters()).device
    total, correct, count, labels = 0.0, 0, 0, 0
    try:
        # a DataLoader draws a seed whenever it starts: to look at the model more often must not change it
        with replayed(random_state([] if device.type == "cpu" else [device])):
            for x, y in batches:
                x, y = x.to(device), y.to(device)
                with _autocast(device, precision):
                    outputs = model(x)
                    total += float(loss(outputs, y).sum())
                if outputs.dim() == y.dim() + 1 and not y.is_floating_point():
                    correct += int((outputs.argmax(1) == y).sum())
                    labels += y.numel()
                count += len(y)
    finally:
        for module, training in modes:
            module.training = training
    if count == 0:
        raise ValueError("there is nothing to evaluate: the test data are empty")
    return {"test_loss": total / count, **({"test_accuracy": correct / labels} if labels else {})}


def _train_epoch(
    model: nn.Module,
    optimizer: SharpnessAware,
    train: Epochs | Iterable[Batch],
    progress: Progress,
    epochs: int,
    loss: Loss,
    schedule: Schedule | LRScheduler | None,
    budget: float | None,
    precision: str,
    scaler: GradScaler | None,
) -> dict[str, Any]:
    """Train one epoch (or until the budget is spent), update ``progress`` and return the epoch's metrics."""
    device = next(model.parameters()).device
    batches = train.epoch(progress.epoch + 1) if isinstance(train, Epochs) else iter(train)
    steps = _length(train)
    model.train()
    started, cpu_started = time.perf_counter(), time.process_time()
    losses: list[Tensor] = []
    sizes: list[int] = []
    samples = {"forward": 0, "backward": 0}
    for number, (x, y) in enumerate(batches):
        spent = progress.seconds + time.perf_counter() - started
        if budget is not None and spent >= budget:
            break
        if callable(schedule):
            done = spent / budget if budget else (progress.epoch + (number / steps if steps else 0)) / epochs
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * schedule(done)
        x, y = x.to(device), y.to(device)

        def closure(keep: slice | Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            whole = isinstance(keep, slice)
            targets = y if whole else y[keep]
            samples["forward"] += len(targets)
            samples["backward"] += len(targets) if torch.is_grad_enabled() else 0
            with _autocast(device, precision):
                return loss(model(x if whole else x[keep]), targets)

        losses.append(optimizer.step(closure, scaler=scaler, batch_size=len(y)))
        if scaler is not None:
            scaler.update()
        sizes.append(len(y))
    else:
        if not sizes:
            raise ValueError(
                f"train gave no batch in epoch {progress.epoch + 1}; an iterator can be gone through only once: pass "
                "something that starts anew each epoch, such as a list or a DataLoader"
            )
    images = sum(sizes)
    values = torch.stack(losses).tolist() if losses else []
    mean = sum(value * size for value, size in zip(values, sizes, strict=True)) / images if images else math.nan
    share = len(sizes) / steps if steps else 1.0  # below 1 where the budget ended the epoch
    seconds = time.perf_counter() - started
    progress.epoch += 1
    progress.seconds += seconds
    progress.cpu_seconds += time.process_time() - cpu_started
    progress.images += images
    progress.forwards += share * samples["forward"] / max(images, 1)
    progress.backwards += share * samples["backward"] / max(images, 1)
    return {
        "epoch": progress.epoch,
        "lr": optimizer.param_groups[0]["lr"],
        "train_loss": mean,
        "train_seconds": seconds,
        "seconds": progress.seconds,
        "images": images,
        "forwards": progress.forwards,
        "backwards": progress.backwards,
    }


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    dtype = PRECISIONS[precision]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def _length(train: Epochs | Iterable[Batch]) -> int | None:
    try:
        return len(train)  # type: ignore[arg-type]
    except TypeError:  # a DataLoader of an endless or unsized stream has __len__, and raises in it
        return None


def _resumed(
    checkpoint: Checkpoint | None, stateful: dict[str, Any], device: torch.device, train: Epochs | Iterable[Batch]
) -> Progress:
    state = None if checkpoint is None else checkpoint.load(device)
    if checkpoint is None or state is None:
        return Progress()
    for name, part in stateful.items():
        if name not in state:
            raise ValueError(
                f"{checkpoint.folder} was saved by a run without a {name}; resume with what that run had, or choose "
                "another folder"
            )
        part.load_state_dict(state[name])
    random = state["random"]
    torch.set_rng_state(random["cpu"].cpu())
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(random["device"].cpu(), device)
    for generator, value in zip(_generators(train), random.get("loader", []), strict=False):
        generator.set_state(value.cpu())
    return Progress(**state["progress"])


def _random_state(device: torch.device, train: Epochs | Iterable[Batch]) -> dict[str, Any]:
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return {**state, "loader": [generator.get_state() for generator in _generators(train)]}


def _generators(train: Epochs | Iterable[Batch]) -> list[torch.Generator]:
    """Give the generators that a DataLoader and its sampler draw from instead of the global one."""
    found = [getattr(owner, "generator", None) for owner in (train, getattr(train, "sampler", None))]
    return [generator for generator in found if isinstance(generator, torch.Generator)]
