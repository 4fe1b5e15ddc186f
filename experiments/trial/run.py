"""How does one run go? Train, time the steps, evaluate once, and return a record."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esam import analysis
from esam.train.record import environment

from .arms import ARMS
from .data import Split
from .nets import AirNet
from .tasks import TASKS, Task, sample_losses

HORIZONS = (0.05, 0.2)  # of the running averages of the base's weights, in shares of the run
BITS = (8, 4)
WARMUP = 0.05  # of all steps: the learning rate rises linearly, then falls as a cosine to 0


@dataclass(frozen=True)
class Run:
    """What identifies a run; two runs with equal fields are the same."""

    stage: str
    """pilot and tune are judged by validation images, final by the test images, development by images apart."""
    task: str
    arm: str
    seed: int
    lr: float
    weight_decay: float
    epochs: float
    rho: float | None = None
    schedule: str = "cosine"

    @cached_property
    def key(self) -> str:
        """Return a short stable name."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def purpose(self) -> str:
        """Return what the run is judged by."""
        return {"final": "test", "development": "development"}.get(self.stage, "validation")


def learning_rate(run: Run, step: int, steps: int) -> float:
    """Return the share of the learning rate in force at a step."""
    warm = max(1, round(WARMUP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) if run.schedule == "cosine" else 1.0


class Average:
    """A running average of weights and buffers."""

    def __init__(self, net: nn.Module, decay: float, every: int) -> None:
        self.decay, self.every = decay**every, every
        self.tensors = [t.detach().clone() for t in floats(net)]

    def update(self, net: nn.Module, step: int) -> None:
        """Take the weights in, every few steps."""
        if step % self.every == 0:
            torch._foreach_lerp_(self.tensors, floats(net), 1 - self.decay)

    def averaged(self, net: nn.Module) -> nn.Module:
        """Return a copy of the net that has the average."""
        other = copy.deepcopy(net)
        torch._foreach_copy_(floats(other), self.tensors)
        return other


def floats(net: nn.Module) -> list[Tensor]:
    """Return all weights and buffers that can be averaged."""
    return [t.detach() for t in net.state_dict().values() if t.is_floating_point()]


def train(run: Run, *, threads: int = 1, checkpoint: Path | None = None) -> dict[str, Any]:
    """Train one run and return its record.

    Args:
        run: What to train.
        threads: Of torch.
        checkpoint: Where to keep an unfinished run that takes minutes; it goes on from there.
    """
    torch.set_num_threads(threads)
    task, arm = TASKS[run.task], ARMS[run.arm]
    split = task.split(seed=run.seed, purpose=run.purpose)
    torch.manual_seed(run.seed)
    net = task.net()
    if isinstance(net, AirNet):
        net.whiten(split.inputs[:5_000])
    base = task.base(net, run.lr, run.weight_decay)
    optimizer = arm.build(base, net, rho=run.rho, batch=task.batch, seed=run.seed) if arm.build else base
    per_epoch = len(split.inputs) // task.batch
    steps = max(1, round(run.epochs * per_epoch))
    every = max(1, steps // 400)
    horizons = () if arm.build else HORIZONS
    averages = [Average(net, 1 - 1 / max(1.0, share * steps), every) for share in horizons]
    generator = torch.Generator().manual_seed(run.seed)
    rates = [group["lr"] for group in base.param_groups]
    step, seconds, losses, step_seconds = 0, 0.0, [], []
    order = torch.empty(0, dtype=torch.long)
    if checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["generator"])
        torch.set_rng_state(state["random"])
        step, seconds, losses, step_seconds = state["step"], state["seconds"], state["losses"], state["step_seconds"]
        order = state["order"]
        for average, tensors in zip(averages, state["averages"], strict=True):
            average.tensors = tensors

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=task.airbench):
            scores = net(inputs)
        return sample_losses(scores.float(), targets)

    saved = time.monotonic()
    net.train()
    wall = time.perf_counter()
    while step < steps:
        if step % per_epoch == 0:
            order = torch.randperm(len(split.inputs), generator=generator)
        began = time.process_time()
        place = step % per_epoch * task.batch
        keep = order[place : place + task.batch]
        x, y = task.augment(split.inputs[keep], generator), split.targets[keep]
        for group, rate in zip(base.param_groups, rates, strict=True):
            group["lr"] = rate * learning_rate(run, step, steps)
        if arm.build is None:
            base.zero_grad()
            loss = loss_of(x, y).mean()
            loss.backward()
            base.step()
        else:
            loss = optimizer.step(loss_of, x, y)
        losses.append(float(loss.detach()))
        took = time.process_time() - began
        seconds += took
        step_seconds.append(took)
        if not math.isfinite(losses[-1]):
            break
        step += 1
        for average in averages:
            average.update(net, step)
        if checkpoint is not None and step % per_epoch == 0 and time.monotonic() - saved > 60:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "generator": generator.get_state()}
            state |= {
                "random": torch.get_rng_state(),
                "step": step,
                "seconds": seconds,
                "losses": losses,
                "order": order,
            }
            state |= {"step_seconds": step_seconds, "averages": [average.tensors for average in averages]}
            partial = checkpoint.with_suffix(".partial")
            torch.save(state, partial)
            os.replace(partial, checkpoint)
            saved = time.monotonic()
    record: dict[str, Any] = {
        **asdict(run),
        "steps": steps,
        "diverged": not math.isfinite(losses[-1]),
        "train_loss": sum(losses[-per_epoch:]) / len(losses[-per_epoch:]),
        "losses": [round(sum(part) / len(part), 4) for part in chunks(losses, 20)],
        "seconds": seconds,
        "step_median": sorted(step_seconds)[len(step_seconds) // 2],
        "wall": time.perf_counter() - wall,
        "load": os.getloadavg()[0],
        "settings": settings(optimizer, base, task),
        "data": split.fingerprint(),
        **environment(),
        "commit": commit(),
    }
    if not record["diverged"]:
        record |= evaluate(net, split, bits=run.stage == "final")
        fitted = Split(split.inputs[:0], split.targets[:0], split.inputs[:4_000], split.targets[:4_000])
        record["train_accuracy"] = evaluate(net, fitted)["accuracy"]
        for share, average in zip(horizons, averages, strict=True):
            values = evaluate(average.averaged(net), split, bits=run.stage == "final")
            record |= {f"ema_{share}_{name}": value for name, value in values.items()}
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return record


def chunks(values: list[float], count: int) -> list[list[float]]:
    """Cut a list into up to ``count`` parts of about equal length."""
    size = max(1, math.ceil(len(values) / count))
    return [values[i : i + size] for i in range(0, len(values), size)]


@torch.no_grad()
def evaluate(net: nn.Module, split: Split, *, bits: bool = False) -> dict[str, float]:
    """Return accuracy, mean loss and calibration error; with ``bits``, the same after weights were rounded."""
    net.eval()
    scores = torch.cat([net(part) for part in split.judge_inputs.split(250)])
    answers = split.judge_targets
    scores, answers = scores.reshape(-1, scores.shape[-1]), answers.reshape(-1)
    chances = scores.softmax(1)
    sure, guess = chances.max(1)
    right = (guess == answers).float()
    bins = (sure * 15).long().clamp(max=14)
    gaps = torch.zeros(15).index_add(0, bins, right - sure).abs().sum() / len(answers)
    values = {
        "accuracy": float(right.mean()) * 100,
        "loss": float(torch.nn.functional.cross_entropy(scores, answers)),
        "calibration": float(gaps),
    }
    if bits:
        for width in BITS:
            found = evaluate(rounded(net, width), split)
            values |= {f"{name}_{width}_bits": found[name] for name in ("accuracy", "loss")}
    return values


def rounded(net: nn.Module, bits: int) -> nn.Module:
    """Return a copy whose matrices and filters are rounded to the nearest of 2^bits - 1 levels, row by row."""
    other = copy.deepcopy(net)
    other.load_state_dict(analysis.rounded(dict(net.named_parameters()), bits), strict=False)
    return other


def settings(optimizer: Any, base: torch.optim.Optimizer, task: Task) -> dict[str, Any]:
    """Return what was in force: the method's own settings and the base's."""
    plain = (int, float, str, bool, type(None))
    ours = (
        {} if optimizer is base else {k: v for k, v in vars(optimizer).items() if k[0] != "_" and isinstance(v, plain)}
    )
    defaults = {k: v for k, v in base.defaults.items() if isinstance(v, plain)}
    fixed = {"batch": task.batch, "autocast": task.airbench}
    return {"method": type(optimizer).__name__, **ours, "base": type(base).__name__, **defaults, **fixed}


@cache
def commit() -> str:
    """Return the commit; dirty where code was changed, for the records themselves change with every run."""
    root = Path(__file__).parents[2]
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "esam", "experiments"], cwd=root).returncode
    return f"{head.stdout.strip()}-dirty" if changed else head.stdout.strip()
