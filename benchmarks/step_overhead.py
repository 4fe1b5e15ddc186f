"""What does SAM's own arithmetic cost, beside a plain multi-tensor SGD step of the same tensors?

    python benchmarks/step_overhead.py [--out results/step_overhead.json]

A network of 1,000 small tensors; forward and backward are replaced by gradients that are already there, so that only
the optimizer's own work is timed: norms, eps, moving the weights there and back. Both are timed in turn in one run, on
one thread, by CPU time; the ratio is taken pair by pair.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from esam import SAM
from esam.train.record import environment

TENSORS, WIDTH, PAIRS = 1_000, 8, 300


class Given(torch.autograd.Function):
    """Losses whose gradient is given: all tensors enter one node, so backward costs next to nothing."""

    @staticmethod
    def forward(ctx, gradients, *weights):
        ctx.gradients = gradients
        return torch.ones(2)

    @staticmethod
    def backward(ctx, _):
        return (None, *ctx.gradients)


def cpu_seconds(run):
    start = time.process_time()
    run()
    return time.process_time() - start


def measure():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(TENSORS // 2)))
    weights = list(model.parameters())
    gradients = [torch.randn_like(w) for w in weights]
    closure = lambda keep: Given.apply(gradients, *weights)  # noqa: E731

    def base():
        return torch.optim.SGD(weights, lr=1e-4, foreach=True)

    def passes():
        """What SAM's two passes cost without SAM."""
        torch.autograd.grad(closure(slice(None)).mean(), weights, allow_unused=True)
        for w in weights:
            w.grad = None
        closure(slice(None)).mean().backward()

    def plain():
        passes()
        return cpu_seconds(sgd.step)  # on gradients fresh from a backward pass, as SAM's own base step has them

    sgd, sam = base(), SAM(base(), model)
    for _ in range(10):
        plain(), sam.step(closure)
    rows = []
    for _ in range(PAIRS):
        start = time.process_time()
        step = plain()
        middle = time.process_time()
        sam.step(closure)
        rows.append((step, middle - start, time.process_time() - middle))
    # both hold two passes and one base step; what SAM takes beyond that is its own arithmetic
    ratios = sorted((whole - without) / step for step, without, whole in rows)
    quantile = lambda q: ratios[round(q * (len(ratios) - 1))]  # noqa: E731
    return {
        "what": "SAM's own arithmetic / a plain multi-tensor SGD step, CPU time, one thread",
        "tensors": TENSORS,
        "shapes": [[WIDTH, WIDTH], [WIDTH]],
        "n": PAIRS,
        "ratio": {"median": statistics.median(ratios), "interval 5-95 %": [quantile(0.05), quantile(0.95)]},
        "median ms": {
            "sgd step": 1e3 * statistics.median(r[0] for r in rows),
            "two passes and an sgd step": 1e3 * statistics.median(r[1] for r in rows),
            "sam step": 1e3 * statistics.median(r[2] for r in rows),
        },
        "environment": environment(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = json.dumps(measure(), indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
