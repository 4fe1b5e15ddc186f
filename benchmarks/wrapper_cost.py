"""What does a step of the package cost beside the same step written by hand, from a small MLP to ResNet-18?

    python benchmarks/wrapper_cost.py --out results/wrapper_cost.json         [--nets mlp resnet8] [--rounds 1000]

Time: steps in turn, one thread, processor time, the median of the ratios of a round: SGD's, SAM and SliceSAM by hand,
SAM and SliceSAM of the package. Memory: the peak of five steps in a fresh process, beyond model and batch (Linux).
By hand means what a careful author would write: norm and factor as tensors, foreach, theta copied and put back,
statistics of BatchNorm moved once; no undo on error, no replayed random numbers, no ranks, no checks.
"""

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from esam import SAM, SliceSAM
from esam.bench.memory import peak_of
from esam.bench.steps import seconds_in_turn
from esam.files import write_atomically
from esam.optim.monitor import Monitor
from esam.train.models import build_model
from esam.train.record import environment

RHO, SHARE = 0.05, 0.125
LIMITS = {"SAM": 1.10, "SliceSAM": 1.15}
"""Of the time of the step by hand, on the MLP."""
MEMORY_LIMIT = 1.05
"""Of the peak memory of SliceSAM by hand."""


class Transformer(nn.Module):
    """A small transformer: over patches of a picture (one output), or causal over tokens (one output each)."""

    def __init__(self, embedding, length, outputs, *, causal, width=96, depth=4):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.embedding, self.blocks = embedding, nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.positions, self.head = nn.Parameter(0.02 * torch.randn(length, width)), nn.Linear(width, outputs)
        mask = nn.Transformer.generate_square_subsequent_mask(length) if causal else None
        self.register_buffer("mask", mask)

    def forward(self, x):
        x = self.embedding(x)
        x = x.flatten(2).transpose(1, 2) if x.dim() == 4 else x
        x = self.blocks(x + self.positions, mask=self.mask)
        return self.head(x).flatten(0, 1) if self.mask is not None else self.head(x.mean(1))


def mlp():
    layers = nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(256, 10)), torch.randn(64, 64), torch.randint(0, 10, (64,))


def resnet(name, size):
    return build_model(name, classes=10, channels=3, size=size), torch.randn(64, 3, size, size), torch.arange(64) % 10


def vit():
    model = Transformer(nn.Conv2d(3, 96, 4, 4), 64, 10, causal=False)
    return model, torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))


def gpt():
    model = Transformer(nn.Embedding(64, 96), 64, 64, causal=True)
    return model, torch.randint(0, 64, (32, 64)), torch.randint(0, 64, (32, 64))


NETS = {
    "mlp": mlp,
    "resnet8": lambda: resnet("resnet8", 16),
    "small-vit": vit,
    "small-gpt": gpt,
    "resnet18": lambda: resnet("resnet18", 32),
}


def parts(net):
    torch.manual_seed(0)
    model, x, y = NETS[net]()
    return model.train(), x, y, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y.flatten())


def sgd(net):
    model, x, y, base = parts(net)

    def step():
        base.zero_grad()
        loss_of(model, x, y).backward()
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
        loss_of(model, x, y).backward()
        theta = perturb(weights, [w.grad for w in weights])
        base.zero_grad()
        statistics.keep()
        loss_of(model, x, y).backward()
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
        loss_of(model, x_s, y_s).backward()
        statistics.move()
        g_s = [w.grad for w in weights]
        base.zero_grad()
        loss_of(model, x[many], y[many]).backward()
        with torch.no_grad():  # g_B - g_S = (1 - share) (g_R - g_S)
            g = [w.grad for w in weights]
            torch._foreach_sub_(g, g_s)
            torch._foreach_mul_(g, 1 - size / len(x))
        theta = perturb(weights, g_s)
        del g_s
        statistics.keep()
        loss_of(model, x_s, y_s).backward()
        statistics.move()
        put_back(weights, theta)
        base.step()

    return step


def of_the_package(method, **settings):
    def build(net):
        model, x, y, base = parts(net)
        optimizer = method(base, model, rho=RHO, **settings)
        optimizer.monitor = Monitor()  # the first ten steps are monitored; this is about all others

        return lambda: optimizer.step(lambda x, y: loss_of(model, x, y), x, y)

    return build


STEPS = {
    "SGD": sgd,
    "SAM by hand": sam_by_hand,
    "SAM": of_the_package(SAM),
    "SliceSAM by hand": slicesam_by_hand,
    "SliceSAM": of_the_package(SliceSAM, share=SHARE),
}


def timed(net, rounds):
    """Return the median processor time of each step, in milliseconds, and the median ratios to those by hand."""
    steps = {name: build(net) for name, build in STEPS.items()}
    seconds_in_turn(steps, 2)  # the first ones allocate
    times = seconds_in_turn(steps, rounds)
    return {
        "milliseconds": {name: 1e3 * statistics.median(found) for name, found in times.items()},
        "over by hand": {name: median_ratio(times[name], times[f"{name} by hand"]) for name in LIMITS},
        "over SGD": {name: median_ratio(found, times["SGD"]) for name, found in times.items()},
    }


def median_ratio(times, others):
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def step_of(net, name):
    return STEPS[name](net)


def peaks(net):
    """Return the most memory that steps of SliceSAM need, of the package and by hand, and the ratio."""
    found = {name: peak_of(partial(step_of, net, name)) / 2**20 for name in ("SliceSAM by hand", "SliceSAM")}
    return {"peak MB": found, "memory over by hand": found["SliceSAM"] / found["SliceSAM by hand"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--rounds", type=int, default=1000, help="of the MLP; other nets take a hundredth")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    nets = {}
    for net in arguments.nets:
        nets[net] = timed(net, arguments.rounds if net == "mlp" else max(5, arguments.rounds // 100))
        nets[net].update({} if arguments.no_memory else peaks(net))
        shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in nets[net]["over by hand"].items())
        print(f"{net}: time over by hand {shown}; SliceSAM's memory {nets[net].get('memory over by hand', 0):.3f}")
    if arguments.out is not None:
        limits = {"time over by hand, mlp": LIMITS, "memory over by hand": MEMORY_LIMIT}
        record = {"environment": environment(), "rounds": arguments.rounds, "limits": limits, "nets": nets}
        write_atomically(arguments.out, (json.dumps(record, indent=1) + "\n").encode())
