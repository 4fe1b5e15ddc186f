"""What happens in an epoch? The one training loop, for every method and for a user's own model and data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from esam.optim import Base, SharpnessAware

from .batches import parts_of
from .checkpoint import Checkpoint, Progress, Resumable
from .config import Config
from .distributed import Ranks
from .evaluation import Loss, Metric, autocast, evaluate, per_sample_cross_entropy
from .samples import Batch, Inputs, on_device, outputs_of

Schedule = Callable[[float], float]
OnBatch = Callable[[int, int, int], None]
"""(epoch from 1, batch from 0, batches of an epoch); called before each batch."""


class Epochs(Protocol):
    """Batches that can give any epoch again; a plain iterable such as a DataLoader will do too."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Give the batches of epoch ``number``, counted from 1."""

    def __len__(self) -> int: ...


def cosine(progress: float) -> float:
    """Return the factor on the learning rate: from 1 to 0 along half a cosine."""
    return (1 + math.cos(math.pi * min(progress, 1.0))) / 2


SCHEDULES: dict[str, Schedule | None] = {"cosine": cosine, "constant": None}


def schedule_of(config: Config) -> Schedule | None:
    """Return the factor on the learning rate by progress: a straight rise over the warm-up, then the schedule.

    >>> warmed = schedule_of(Config(epochs=10, warmup=2, schedule="constant"))
    >>> [round(warmed(progress), 2) for progress in (0.0, 0.1, 0.2, 1.0)]
    [0.0, 0.5, 1.0, 1.0]
    """
    schedule, share = SCHEDULES[config.schedule], config.warmup / max(config.epochs, 1)
    if not share:
        return schedule

    def factor(progress: float) -> float:
        if progress < share:
            return progress / share
        return 1.0 if schedule is None else schedule((progress - share) / (1 - share))

    return factor


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    train: Epochs | Iterable[Batch],
    test: Iterable[Batch] | None = None,
    *,
    epochs: int,
    loss: Loss = per_sample_cross_entropy,
    schedule: Schedule | None = None,
    budget: float | None = None,
    precision: str = "float32",
    evaluate_every: int = 1,
    checkpoint: Checkpoint | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    metric: Metric | None = None,
    ranks: Ranks | None = None,
    on_batch: OnBatch | None = None,
) -> Progress:
    """Train, and return how far it came: to the end, or to an epoch whose loss was not finite (``diverged``).

    Args:
        model: Any module; it stays on its device, and the batches are moved there.
        optimizer: Sharpness-aware, or any torch optimizer, which then trains as it is.
        train: An object with ``epoch(number)``, or any iterable of ``(inputs, targets)``, such as a DataLoader. Inputs,
            and whole batches with ``labels``, may be dicts of tensors.
        test: Evaluated in eval mode after every ``evaluate_every`` epochs, and after the last.
        epochs: How many to train, those before a resume included.
        loss: ``(outputs, targets)`` -> one loss per sample.
        schedule: A factor on the learning rate as a function of progress in [0, 1], set at each step.
        budget: Stop after this many seconds of training, whatever ``epochs`` says.
        evaluate_every: How often to evaluate, in epochs.
        precision: float32, bf16 (autocast) or fp16 (autocast and a ``GradScaler``).
        checkpoint: Where to save after each epoch. If it holds a state, training continues from there, bit for bit,
            torch's random numbers included.
        on_epoch: Called with each epoch's metrics, before the checkpoint is written.
        metric: ``(outputs, targets)`` -> one number per sample, whose mean over the test data is recorded.
        ranks: Those that train together; ``model`` is then in DistributedDataParallel, and ``train`` gives the same
            batches on every rank, which takes its part of each. Rank 0 writes.
        on_batch: Called before each batch with the epoch, the batch's number and how many an epoch has.
    """
    ranks = ranks or Ranks()
    device = next(model.parameters()).device
    scaler = GradScaler(device.type) if precision == "fp16" else None
    stepper = optimizer if isinstance(optimizer, SharpnessAware) else Base(optimizer, model)
    for group in stepper.param_groups:
        group.setdefault("initial_lr", group["lr"])
    resumable = Resumable(model, stepper, scaler, device, ranks)
    progress = resumable.load(checkpoint)
    pace = _Pace(schedule, epochs, budget, ranks)
    while not (progress.diverged or pace.over(progress)):
        metrics = _train_epoch(model, stepper, train, progress, pace, loss, precision, scaler, on_batch)
        ends = progress.diverged or pace.over(progress)
        if test is not None and (ends or progress.epoch % evaluate_every == 0):
            with stepper.evaluation_weights():
                metrics |= evaluate(model, test, loss, precision=precision, metric=metric, ranks=ranks)
            progress.best = max(progress.best, metrics.get("test_accuracy", 0.0))
        if on_epoch is not None:
            on_epoch(metrics)
        if checkpoint is not None and not progress.diverged:  # the last good state is worth more
            resumable.save(checkpoint, progress)
    return progress


@dataclass(frozen=True)
class _Pace:
    """How long a run is, in epochs or in seconds, and the learning rate along the way; alike on every rank."""

    schedule: Schedule | None
    epochs: int
    budget: float | None
    ranks: Ranks

    def over(self, progress: Progress) -> bool:
        return progress.epoch >= self.epochs or self.spent(progress.seconds)

    def spent(self, seconds: float) -> bool:
        return self.budget is not None and seconds >= self.budget

    def set_rate(self, optimizer: Optimizer, epochs: float, seconds: float) -> None:
        if self.schedule is not None:
            factor = self.schedule(seconds / self.budget if self.budget else epochs / self.epochs)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor


def _train_epoch(
    model: nn.Module,
    optimizer: SharpnessAware,
    train: Epochs | Iterable[Batch],
    progress: Progress,
    pace: _Pace,
    loss: Loss,
    precision: str,
    scaler: GradScaler | None,
    on_batch: OnBatch | None,
) -> dict[str, Any]:
    """Train one epoch (or until the budget is spent), update ``progress`` and return the epoch's metrics."""
    device, ranks = next(model.parameters()).device, pace.ranks
    try:
        steps: int | None = len(train)  # type: ignore[arg-type]
    except TypeError:  # a DataLoader of an endless or unsized stream has __len__, and raises in it
        steps = None
    model.train()
    started, cpu_started = time.perf_counter(), time.process_time()
    losses: list[Tensor] = []
    sizes: list[int] = []
    samples = {"forward": 0, "backward": 0}
    for number, (x, y, rows) in enumerate(parts_of(train, ranks, progress.epoch + 1)):
        seconds = progress.seconds + time.perf_counter() - started
        if pace.budget is not None:
            seconds = ranks.from_first(seconds)
        if pace.spent(seconds):
            break
        if on_batch is not None:
            on_batch(progress.epoch + 1, number, steps or 0)
        pace.set_rate(optimizer, progress.epoch + (number / steps if steps else 0), seconds)
        x, y = on_device(x, device), y.to(device)

        def loss_of(x: Inputs, y: Tensor, weight: float = rows.weight) -> Tensor:
            samples["forward"] += len(y)
            samples["backward"] += len(y) if torch.is_grad_enabled() else 0
            with autocast(device, precision):
                losses = loss(outputs_of(model, x), y)
                return losses if weight == 1 else weight * losses  # ranks' parts may differ by a sample

        losses.append(optimizer.step(loss_of, x, y, scaler=scaler))
        if scaler is not None:
            scaler.update()
        sizes.append(rows.batch_size)
    else:
        if not sizes:
            raise ValueError(
                f"train gave no batch in epoch {progress.epoch + 1}; an iterator can be gone through only once: pass "
                "something that starts anew each epoch, such as a list or a DataLoader"
            )
    images = sum(sizes)
    values = [total / ranks.count for total in ranks.sum(torch.stack(losses).tolist())] if losses else []
    mean = sum(value * size for value, size in zip(values, sizes, strict=True)) / images if images else math.nan
    finite = [math.isfinite(value) for value in values]
    # a GradScaler finds its scale by overflowing now and then, and skips those steps
    progress.diverged = bool(values) and not (all(finite) if scaler is None else any(finite))
    share = len(sizes) / steps if steps else 1.0  # below 1 where the budget ended the epoch
    seconds = ranks.from_first(time.perf_counter() - started)
    forwards, backwards, cpu_seconds = ranks.sum([*samples.values(), time.process_time() - cpu_started])
    progress.epoch += 1
    progress.seconds += seconds
    progress.cpu_seconds += cpu_seconds
    progress.images += images
    progress.forwards += share * forwards / max(images, 1)
    progress.backwards += share * backwards / max(images, 1)
    return {
        "epoch": progress.epoch,
        "lr": optimizer.param_groups[0]["lr"],
        "train_loss": mean,
        "train_seconds": seconds,
        "seconds": progress.seconds,
        "images": images,
        "forwards": progress.forwards,
        "backwards": progress.backwards,
        **({"ranks": ranks.count} if ranks.several else {}),
    }
