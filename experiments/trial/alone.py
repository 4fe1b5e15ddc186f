"""What does a step take at full size, timed alone? The trial's own times were taken two runs at a time.

    python -m experiments.trial.alone --out results/trial_alone.json

The base, the base in the two parts that SliceSAM's slice makes of a batch, SliceSAM and SAM, in turn on random images:
one thread, processor time, the median of the ratios of a round. Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from esam.bench.steps import seconds_in_turn
from esam.files import write_atomically
from esam.train.record import environment

from .arms import ARMS, SLICE
from .nets import AirNet
from .run import commit, sample_losses
from .tasks import TASKS

WARM = 2  # rounds that are not counted


def step_of(name: str, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a step of its own net, by an arm or by the base ``in two parts``."""
    task = TASKS["full"]
    torch.manual_seed(0)
    net: nn.Module = task.net()
    assert isinstance(net, AirNet)
    net.whiten(x)
    base = task.base(net.train(), task.lr, task.weight_decay)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores = net(x)
        return sample_losses(scores.float(), y)

    if build := ARMS[name].build if name in ARMS else None:
        optimizer = build(base, net, rho=ARMS[name].rho, batch=len(x), seed=0)
        return lambda: optimizer.step(losses, x, y)
    sizes = [len(x)] if name == "base" else [len(x) // SLICE, len(x) - len(x) // SLICE]

    def step() -> None:
        base.zero_grad()
        for images, answers in zip(x.split(sizes), y.split(sizes), strict=True):
            (losses(images, answers).sum() / len(x)).backward()
        base.step()

    return step


def main() -> None:
    """Time and write."""
    parser = argparse.ArgumentParser(prog="python -m experiments.trial.alone", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))
    steps = {name: step_of(name, x, y) for name in ("base", "in two parts", "slicesam", "sam")}
    times = seconds_in_turn(steps, WARM + options.rounds)
    counted = {name: seconds[WARM:] for name, seconds in times.items()}
    ratios = {name: median(a / b for a, b in zip(s, counted["base"], strict=True)) for name, s in counted.items()}
    record = {"time / base's": ratios, "seconds": counted, **environment(), "commit": commit()}
    write_atomically(options.out, (json.dumps(record, indent=1) + "\n").encode())
    print(ratios)


if __name__ == "__main__":
    main()
