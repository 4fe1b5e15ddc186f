"""How good an estimate of SAM's correction is a slice's? Cosine, length and noise, at weights along a training.

SAM steps by g_B(theta + eps) = g_B(theta) + c_B; an estimator replaces c_B. Over many batches at the same
weights this measures the mean of the estimator's correction against the mean of SAM's (cosine, ratio of lengths, both
corrected for the noise of a finite sample) and the noise of one step's correction, in units of the gradient's own.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esam.files import write_atomically

from .data import Split
from .run import Run, learning_rate
from .tasks import TASKS, Task, sample_losses

RADIUS = 0.05
BATCHES = 64
MOMENTS = (0.1, 0.5, 1.0)  # shares of the base's training after which the weights are looked at
SIZES = (4, 8, 16, 32, 64)


class Corrections:
    """Sums of one estimator's corrections: enough for mean, length and noise."""

    def __init__(self) -> None:
        self.count, self.squares = 0, 0.0
        self.total: Tensor | None = None

    def add(self, correction: Tensor) -> None:
        """Take one step's correction in."""
        self.count += 1
        self.squares += float(correction.double().square().sum())
        self.total = correction.double() if self.total is None else self.total.add_(correction)

    @property
    def mean(self) -> Tensor:
        """Return the mean correction."""
        assert self.total is not None
        return self.total / self.count

    @property
    def variance(self) -> float:
        """Return the trace of the covariance of one correction."""
        return (self.squares - self.count * float(self.mean.square().sum())) / (self.count - 1)

    @property
    def resolved(self) -> bool:
        """Tell whether the expected correction is longer than the error of its estimate."""
        return self.square > self.variance / self.count

    @property
    def square(self) -> float:
        """Return the squared length of the expected correction, without the bias of a finite sample."""
        return float(self.mean.square().sum()) - self.variance / self.count


class Point:
    """A net at fixed weights: gradients of samples at these weights, or moved from them."""

    def __init__(self, net: nn.Module, task: Task, split: Split, seed: int) -> None:
        self.net, self.task, self.split = net, task, split
        self.generator = torch.Generator().manual_seed(seed)
        self.weights = [p for p in net.parameters() if p.requires_grad]

    def batch(self) -> tuple[Tensor, Tensor]:
        """Draw a batch, augmented."""
        keep = torch.randperm(len(self.split.inputs), generator=self.generator)[: self.task.batch]
        return self.task.augment(self.split.inputs[keep], self.generator), self.split.targets[keep]

    def gradient(self, x: Tensor, y: Tensor, eps: Tensor | None = None) -> Tensor:
        """Return the gradient at the weights, or at the weights moved by eps, as one vector."""
        if eps is not None:
            theta = [w.detach().clone() for w in self.weights]
            with torch.no_grad():
                pieces = eps.split([w.numel() for w in self.weights])
                torch._foreach_add_(self.weights, [e.view_as(w) for e, w in zip(pieces, self.weights, strict=True)])
        found = torch.autograd.grad(sample_losses(self.net(x), y).mean(), self.weights)
        if eps is not None:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, theta)
        return torch.cat([g.reshape(-1) for g in found])


def unit(vector: Tensor) -> Tensor:
    """Return a vector of length 1."""
    return vector / vector.norm()


Estimator = Callable[[Point, Tensor, Tensor, Tensor], Tensor]


def whole(radius: float) -> Estimator:
    """SAM's own correction."""

    def correct(at: Point, x: Tensor, y: Tensor, g: Tensor) -> Tensor:
        return at.gradient(x, y, radius * unit(g)) - g

    return correct


def sliced(size: int, radius: float) -> Estimator:
    """SliceSAM's: ascent and difference on the same slice."""

    def correct(at: Point, x: Tensor, y: Tensor, g: Tensor) -> Tensor:
        s = at.gradient(x[:size], y[:size])
        return at.gradient(x[:size], y[:size], radius * unit(s)) - s

    return correct


def ascent(size: int, radius: float) -> Estimator:
    """Ascent on a slice, the whole batch differentiated there."""

    def correct(at: Point, x: Tensor, y: Tensor, g: Tensor) -> Tensor:
        s = at.gradient(x[:size], y[:size])
        return at.gradient(x, y, radius * unit(s)) - g

    return correct


def grouped(size: int, radius: float) -> Estimator:
    """SAM in groups: every group by its own ascent."""

    def correct(at: Point, x: Tensor, y: Tensor, g: Tensor) -> Tensor:
        parts = [sliced(size, radius)(at, a, b, g) for a, b in zip(x.split(size), y.split(size), strict=True)]
        return torch.stack(parts).mean(0)

    return correct


def estimators() -> dict[str, Estimator]:
    """Return what is measured, by name."""
    found: dict[str, Estimator] = {"sam again": whole(RADIUS)}
    found |= {f"slice {n}": sliced(n, RADIUS) for n in SIZES}
    found |= {f"slice 16, radius {r}": sliced(16, r) for r in (0.01, 0.15)}
    found |= {f"ascent {n}": ascent(n, RADIUS) for n in (16, 32)}
    return found | {"groups 16": grouped(16, RADIUS)}


def without_batchnorm(net: nn.Module) -> nn.Module:
    """Return a copy with GroupNorm in place of BatchNorm."""
    net = copy.deepcopy(net)
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(8, child.num_features))
    return net


def measure(at: Point, batches: int) -> list[dict[str, Any]]:
    """Return cosine, length and noise of each estimator at these weights."""
    reference, noise = Corrections(), Corrections()
    for _ in range(batches):
        x, y = at.batch()
        g = at.gradient(x, y)
        noise.add(g)
        reference.add(whole(RADIUS)(at, x, y, g))
    rows: list[dict[str, Any]] = []
    for name, correct in estimators().items():
        found = Corrections()
        for _ in range(batches):
            x, y = at.batch()
            found.add(correct(at, x, y, at.gradient(x, y)))
        product = float((found.mean * reference.mean).sum())
        lengths = max(found.square, 0.0) * max(reference.square, 0.0)
        rows.append(
            {
                "estimator": name,
                "resolved": found.resolved and reference.resolved,
                "cosine": product / lengths**0.5 if lengths else float("nan"),
                "length": (max(found.square, 0.0) / reference.square) ** 0.5 if reference.square > 0 else float("nan"),
                "noise": (found.variance / noise.variance) ** 0.5,
                "correction over gradient": (max(found.square, 0.0) / max(noise.square, 1e-30)) ** 0.5,
            }
        )
    return rows


def follow(name: str, norm: str, batches: int, seed: int) -> list[dict[str, Any]]:
    """Train a development task with the base, and measure at each moment."""
    task = TASKS[name]
    split = task.split(seed=seed, purpose="development")
    torch.manual_seed(seed)
    net = task.net() if norm == "as is" else without_batchnorm(task.net()).to(memory_format=torch.channels_last)
    base = task.base(net, task.lr, task.weight_decay)
    rates = [group["lr"] for group in base.param_groups]
    steps = round(task.epochs * (len(split.inputs) // task.batch))
    run = Run("development", name, "base", seed, task.lr, task.weight_decay, task.epochs)
    at, rows = Point(net, task, split, seed), []
    for step in range(steps):
        for group, rate in zip(base.param_groups, rates, strict=True):
            group["lr"] = rate * learning_rate(run, step, steps)
        x, y = at.batch()
        base.zero_grad()
        loss = sample_losses(net(x), y).mean()
        loss.backward()
        base.step()
        for moment in MOMENTS:
            if step + 1 == round(moment * steps):
                fixed = Point(copy.deepcopy(net), task, replace(split), seed + 1)
                facts = {"task": name, "norm": norm, "moment": moment, "seed": seed, "train_loss": float(loss.detach())}
                rows += [{**facts, "batches": batches, **row} for row in measure(fixed, batches)]
                print(json.dumps(rows[-len(estimators()) :][:3]), flush=True)
    return rows


def main() -> None:
    """Measure on development data and write one file."""
    parser = argparse.ArgumentParser(prog="python -m experiments.trial.estimator", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/estimator.json"))
    parser.add_argument("--batches", type=int, default=BATCHES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, norm in (("cifar10", "as is"), ("cifar10", "GroupNorm"), ("gpt", "as is")):
        rows += follow(name, norm, options.batches, seed=50)
        write_atomically(options.out, (json.dumps(rows, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
