"""What do two ranks exchange in a step, and what does it take? Counted and measured, for the model in docs/speed.md.

    python benchmarks/parallel.py [--rounds 20] [--out results/speed/parallel.json]

Two processes on this machine, gloo over loopback, one thread each. Every step is timed three times: in one process
alone, in two processes side by side that exchange nothing, and on two ranks; each with the same samples on each rank.
Memory is that of one process, with a small batch: beyond the base's, weights are all that counts.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from counting import Counting
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from esam.bench.memory import peak_memory
from esam.bench.steps import Bench, Contender, Registered, contender, prepared, seconds_in_turn
from esam.files import write_atomically
from esam.optim import METHODS
from esam.train.record import environment

RANKS = 2
TIMED = ("base", "sam", "looksam", "esam", "esam-swp", "esam-sds", "slicesam")
HELD = (*TIMED, "base-ema", "asam", "ae-sam", "msam")
COUNTED_STEPS = 20
SIZES = [4**n for n in range(5, 13)]
"""Bytes of the exchanges that are timed: 1 KiB to 16 MiB."""


def ways():
    """Return every step that is timed: a method, and how its ranks perturb."""
    both = [(name, way) for name in TIMED for way in ("rank", "global") if "perturbation" in METHODS[name].options()]
    return [("base", "rank"), *both]


def settings_of(name, way):
    return {"perturbation": way} if "perturbation" in METHODS[name].options() else {}


def step_of(bench, name, way, *, spread):
    """Return a function that steps a fresh model, in replicas where it is spread."""

    def build(model, x, y):
        model = DistributedDataParallel(model) if spread else model
        return Registered(name, settings_of(name, way))(model, x, y)

    return prepared(bench, build)[1]


def timed(bench, *, spread):
    """Return the least seconds of a step of each, taken in turn: what is disturbed takes longer, never shorter."""
    steps = {f"{name}, {way}": step_of(bench, name, way, spread=spread) for name, way in ways()}
    barrier = dist.barrier if dist.is_initialized() else lambda: None
    seconds_in_turn(steps, 1, time.perf_counter, barrier)  # warms up
    times = seconds_in_turn(steps, bench.rounds, time.perf_counter, barrier)
    return {name: min(seconds) for name, seconds in times.items()}


def exchanged():
    """Return the seconds of an exchange by its bytes."""
    found = {}
    for size in SIZES:
        tensor, times = torch.zeros(size // 4), []
        for _ in range(12):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - start)
        found[size] = min(times[2:])
    return found


def counted(rank):
    """Return, of each step, how many whole gradients and how many small messages are exchanged, on average."""
    found = {}
    for name, way in ways():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        size = 4 * sum(p.numel() for p in model.parameters())
        torch.manual_seed(rank)
        x, y = torch.randn(32, 20), torch.randint(0, 10, (32,))
        step = Registered(name, settings_of(name, way))(DistributedDataParallel(model), x, y)
        for _ in range(5):  # a period of LookSAM; norms, buckets and momenta are then known
            step()
        with Counting() as counting:
            for _ in range(COUNTED_STEPS):
                step()
        large = [bytes_ for _, bytes_ in counting.sizes if bytes_ > 1024]
        found[f"{name}, {way}"] = {
            "gradients": sum(large) / size / COUNTED_STEPS,
            "small": (len(counting.sizes) - len(large)) / COUNTED_STEPS,
        }
    return found


def work(rank, bench, folder):
    """Do what one process does."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    alone = timed(bench, spread=False) if rank == 0 else None
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-point", rank=rank, world_size=RANKS)
    found = {"alone": alone, "beside": timed(bench, spread=False), "ranks": timed(bench, spread=True)}
    found |= {"exchange": exchanged(), "counted": counted(rank)}
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def held(bench):
    """Return what a step holds beyond weights and the base's momentum, in units of the weights."""
    model, _ = prepared(bench, contender("base").build)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    own = {name: Contender(Registered(name, {}), 0.0) for name in HELD}
    return {name: peak_memory(bench, one) / size - 1 for name, one in own.items()}  # 1: the momentum


def measure(bench):
    """Return times and counts."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (bench, folder), RANKS)
        found = json.loads(Path(folder, "found.json").read_text())
    steps = {name: {way: found[way][name] for way in ("alone", "beside", "ranks")} for name in found["ranks"]}
    weights = sum(p.numel() for p in prepared(bench, contender("base").build)[0].parameters()) * 4
    return {
        "bench": {"model": bench.model, "batch_size": bench.batch_size, "rounds": bench.rounds, "weights": weights},
        "steps": steps,
        "exchange": found["exchange"],
        "counted": found["counted"],
        "held": held(Bench(model="resnet18", batch_size=2)),
        "environment": environment(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/speed/parallel.json"))
    arguments = parser.parse_args()
    bench = Bench(model=arguments.model, batch_size=arguments.batch, rounds=arguments.rounds)
    result = measure(bench)
    write_atomically(arguments.out, (json.dumps(result, indent=1) + "\n").encode())
    print(json.dumps(result, indent=1))
