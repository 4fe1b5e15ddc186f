"""What does the wrapper cost where a step is hardly more than calls? SAM on a tiny MLP, beside SAM written by hand.

    python benchmarks/wrapper_cost.py [--out results/wrapper_cost.json]

Three steps in turn, one thread, processor time: SGD's, the usual two-step SAM (benchmarks/peers.py), and ours with a
mean loss and with one loss a sample. Memory is in results/speed: "sam" beside "sam, two-step pattern".
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from peers import TwoStepSAM
from torch import nn

from esam import SAM
from esam.files import write_atomically
from esam.train.environment import environment

ROUNDS = 3_000


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))
    x, y = torch.randn(32, 20), torch.randint(0, 5, (32,))
    return model, x, y, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def sgd():
    model, x, y, base = parts()

    def step():
        base.zero_grad()
        F.cross_entropy(model(x), y).backward()
        base.step()

    return step


def by_hand():
    model, x, y, base = parts()
    sam = TwoStepSAM(base)

    def step():
        F.cross_entropy(model(x), y).backward()
        sam.first_step()
        F.cross_entropy(model(x), y).backward()
        sam.second_step()

    return step


def ours(reduction):
    model, x, y, base = parts()
    sam = SAM(base, model)
    return lambda: sam.step(lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction=reduction))


def measure():
    torch.set_num_threads(1)
    steps = {"sgd": sgd(), "sam by hand": by_hand(), "sam": ours("mean"), "sam, a loss each": ours("none")}
    times = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start = time.process_time_ns()
            step()
            times[name].append((time.process_time_ns() - start) / 1e3)
    medians = {name: statistics.median(own) for name, own in times.items()}
    return {
        "what": "median microseconds of a step on a tiny MLP, one thread, processor time; ratios to SAM by hand",
        "n": ROUNDS,
        "microseconds": {name: round(median, 1) for name, median in medians.items()},
        "ratio": {name: round(median / medians["sam by hand"], 3) for name, median in medians.items()},
        "environment": environment(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = measure()
    print(json.dumps(result, indent=1))
    if arguments.out:
        write_atomically(arguments.out, (json.dumps(result, indent=1) + "\n").encode())
