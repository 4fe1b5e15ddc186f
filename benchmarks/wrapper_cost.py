"""What does a step of the package cost beside the same step written by hand, from a small MLP to ResNet-18?

    python benchmarks/wrapper_cost.py [--nets mlp resnet8] [--rounds 200] [--out results/wrapper_cost.json]

Steps in turn, one thread, processor time: SGD's, SAM and SliceSAM by hand, SAM and SliceSAM of the package. By hand
means what a careful author would write: norm and factor as tensors, foreach, theta copied and put back, statistics of
BatchNorm moved once; no undo on error, no replayed random numbers, no ranks, no checks.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from esam import SAM, SliceSAM
from esam.files import write_atomically
from esam.train.models import build_model
from esam.train.record import environment

RHO, SHARE = 0.05, 0.125
LIMITS = {"SAM": 1.10, "SliceSAM": 1.15}
"""Of the time of the step by hand, on the MLP."""


def mlp():
    layers = nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(256, 10)), torch.randn(64, 64)


def pictures(name, size, batch):
    return lambda: (build_model(name, classes=10, channels=3, size=size), torch.randn(batch, 3, size, size))


NETS = {
    "mlp": mlp,
    "resnet8": pictures("resnet8", 16, 64),
    "cnn": pictures("cnn", 32, 64),
    "vit-tiny": pictures("vit-tiny", 32, 64),
    "resnet18": pictures("resnet18", 32, 64),
}


def parts(net):
    torch.manual_seed(0)
    model, x = NETS[net]()
    y = torch.randint(0, 10, (len(x),))
    return model.train(), x, y, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def sgd(net):
    model, x, y, base = parts(net)

    def step():
        base.zero_grad()
        F.cross_entropy(model(x), y).backward()
        base.step()

    return step


class Statistics:
    """BatchNorm's own way to leave its statistics alone."""

    def __init__(self, model):
        self.layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.momenta = [layer.momentum for layer in self.layers]

    def keep(self):
        for layer in self.layers:
            layer.momentum = 0.0

    def move(self):
        for layer, momentum in zip(self.layers, self.momenta, strict=True):
            layer.momentum = momentum


@torch.no_grad()
def perturb(weights, gradients):
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    theta = [w.clone() for w in weights]
    torch._foreach_add_(weights, torch._foreach_mul(gradients, RHO / (norm + 1e-12)))
    return theta


@torch.no_grad()
def put_back(weights, theta):
    torch._foreach_copy_(weights, theta)


def sam_by_hand(net):
    model, x, y, base = parts(net)
    weights, statistics = list(model.parameters()), Statistics(model)

    def step():
        base.zero_grad()
        F.cross_entropy(model(x), y).backward()
        theta = perturb(weights, [w.grad for w in weights])
        base.zero_grad()
        statistics.keep()
        F.cross_entropy(model(x), y).backward()
        statistics.move()
        put_back(weights, theta)
        base.step()

    return step


def slicesam_by_hand(net):
    model, x, y, base = parts(net)
    weights, statistics = list(model.parameters()), Statistics(model)
    size = round(SHARE * len(x))

    def step():
        base.zero_grad()
        order = torch.randperm(len(x))
        few, many = order[:size], order[size:]
        x_s, y_s = x[few], y[few]
        statistics.keep()
        F.cross_entropy(model(x_s), y_s).backward()
        statistics.move()
        g_s = [w.grad for w in weights]
        base.zero_grad()
        F.cross_entropy(model(x[many]), y[many]).backward()
        with torch.no_grad():  # g_B - g_S = (1 - share) (g_R - g_S)
            g = [w.grad for w in weights]
            torch._foreach_sub_(g, g_s)
            torch._foreach_mul_(g, 1 - size / len(x))
        theta = perturb(weights, g_s)
        del g_s
        statistics.keep()
        F.cross_entropy(model(x_s), y_s).backward()
        statistics.move()
        put_back(weights, theta)
        base.step()

    return step


def of_the_package(method, **settings):
    def build(net):
        model, x, y, base = parts(net)
        optimizer = method(base, model, rho=RHO, **settings)

        def loss_of(x, y):
            return F.cross_entropy(model(x), y)

        return lambda: optimizer.step(loss_of, x, y)

    return build


STEPS = {
    "SGD": sgd,
    "SAM by hand": sam_by_hand,
    "SAM": of_the_package(SAM),
    "SliceSAM by hand": slicesam_by_hand,
    "SliceSAM": of_the_package(SliceSAM, share=SHARE),
}


def measure(net, rounds):
    """Return the median processor time of each step, in milliseconds, and the ratios to those by hand."""
    steps = {name: build(net) for name, build in STEPS.items()}
    times = {name: [] for name in steps}
    for number in range(rounds + 15):  # the first ones compile, allocate and are monitored
        for name, step in steps.items():
            start = time.process_time()
            step()
            if number >= 15:
                times[name].append(time.process_time() - start)
    median = {name: 1e3 * statistics.median(own) for name, own in times.items()}
    ratios = {name: median[name] / median[f"{name} by hand"] for name in LIMITS}
    return {
        "milliseconds": median,
        "over by hand": ratios,
        "over SGD": {n: t / median["SGD"] for n, t in median.items()},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for net in arguments.nets:
        found[net] = measure(net, arguments.rounds if net == "mlp" else max(5, arguments.rounds // 10))
        shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found[net]["over by hand"].items())
        print(f"{net}: over by hand {shown}; over SGD", {n: round(r, 2) for n, r in found[net]["over SGD"].items()})
    if arguments.out is not None:
        record = {"environment": environment(), "rounds": arguments.rounds, "limits": LIMITS, "nets": found}
        write_atomically(arguments.out, (json.dumps(record, indent=1) + "\n").encode())
