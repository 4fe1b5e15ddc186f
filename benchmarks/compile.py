"""What does torch.compile make of a whole step? Every method, compiled beside eager, in turn, in one run.

    python benchmarks/compile.py resnet18 [--rounds 3] [--batch 32] [--out results/speed]
    python benchmarks/compile.py vit-tiny

One thread, processor time; batches of one size. All methods share one eager and one compiled model, so that each graph
is made once: one for every size of batch or part (dynamic=False), with a gradient or without. A step in which a graph
is made is counted, not timed.
"""

import argparse
import copy
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch._dynamo

from esam.bench.steps import Bench, contender, spread
from esam.files import write_atomically
from esam.optim import METHODS
from esam.train.models import build_model, fastest_memory_format
from esam.train.record import environment

WAYS = ("eager", "compiled")
GRAPHS = 64
"""More than all sizes and ways of running need, so that none falls back to eager code."""


def steps_of(bench, names, backend):
    """Return the functions that take one step, by method and way."""
    torch.manual_seed(0)
    model = build_model(bench.model, classes=bench.classes, channels=3, size=bench.size).train()
    layout = fastest_memory_format(model)
    model = model.to(memory_format=layout)
    torch._dynamo.config.recompile_limit = GRAPHS
    models = {"eager": model, "compiled": torch.compile(copy.deepcopy(model), backend=backend, dynamic=False)}
    x = torch.randn(bench.batch_size, 3, bench.size, bench.size).contiguous(memory_format=layout)
    y = torch.randint(0, bench.classes, (bench.batch_size,))
    return {(name, way): contender(name).build(models[way], x, y) for name in names for way in WAYS}


def graph_count():
    """Return how many graphs torch.compile has made in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def timed(step):
    """Take a step; return its processor time and how many graphs it made."""
    before, start = graph_count(), time.process_time()
    step()
    return time.process_time() - start, graph_count() - before


def measure(bench, names, *, backend="inductor"):
    """Return the record of so many rounds: raw times, and what they say."""
    torch.set_num_threads(bench.threads)
    steps = steps_of(bench, names, backend)
    for step in steps.values():  # warms up, and compiles
        step()
    seconds, graphs = {name: {way: [] for way in WAYS} for name in names}, dict.fromkeys(names, 0)
    for number in range(bench.rounds):
        keys = list(steps)
        turn = number * len(WAYS) % len(keys)
        for name, way in keys[turn:] + keys[:turn]:
            taken, made = timed(steps[name, way])
            graphs[name] += made
            seconds[name][way] += [] if made else [taken]
        print(f"round {number + 1} of {bench.rounds}", flush=True)
    means = {name: {way: sum(s) / len(s) if s else None for way, s in ways.items()} for name, ways in seconds.items()}
    rows = {}
    for name, mean in means.items():
        rows[name] = {
            "seconds": seconds[name],
            "graphs": graphs[name],
            **{way: spread(seconds[name][way]) for way in WAYS if seconds[name][way]},
            "compiled / eager": ratio(mean["compiled"], mean["eager"]),
            "of base": {way: ratio(mean[way], means["base"][way]) for way in WAYS},
        }
    return {
        "what": "a whole step, compiled beside eager; graphs: made after the warm-up, in steps that are not timed",
        "bench": asdict(bench),
        "backend": backend,
        "rounds": bench.rounds,
        "contenders": rows,
        "environment": environment(),
    }


def ratio(a, b):
    return a / b if a and b else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="base among them")
    parser.add_argument("--out", type=Path, default=Path("results/speed"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(model=given.model, rounds=given.rounds, batch_size=given.batch)
    found = measure(bench, given.methods)
    write_atomically(given.out / f"compile-{given.model}.json", (json.dumps(found, indent=1) + "\n").encode())
    for name, row in found["contenders"].items():
        print(f"{name}: compiled / eager {row['compiled / eager']}, of base {row['of base']}")
