"""How many points of a landscape are evaluated a second, beside the plain loop?

    python benchmarks/landscape.py [--out results/landscape_speed.json]

The plain loop sets the weights, runs the model and restores them. Both see 1,000 images of CIFAR's size in batches of
the same size. Contenders take turns in one run, on one thread, by CPU time; the ratio is taken round by round. What it
costs to find the fastest way is measured too, and charged to a plane of 31 x 31 points.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from esam.analysis import ModelObjective, even_axis, random_plane
from esam.analysis.points import evaluator, fastest
from esam.files import write_atomically
from esam.train.models import build_model, fastest_memory_format
from esam.train.record import environment

IMAGES, SIDE = 1_000, 31
BATCHES = (1_000, 250, 100)
POINTS, ROUNDS = {"mlp": 40, "resnet8": 4}, 11


def plain_loop(model, batches, directions):
    """Set weights, forward, restore."""
    weights = dict(model.named_parameters())

    @torch.no_grad()
    def losses(points):
        found = []
        for row in points.tolist():
            kept = {name: p.clone() for name, p in weights.items()}
            for name, p in weights.items():
                for c, direction in zip(row, directions, strict=True):
                    p.add_(direction[name], alpha=c)
            total = sum(float(F.cross_entropy(model(x), y, reduction="sum")) for x, y in batches)
            found.append(total / IMAGES)
            for name, p in weights.items():
                p.copy_(kept[name])
        return found

    return losses


def cpu_seconds(run, *arguments):
    start = time.process_time()
    run(*arguments)
    return time.process_time() - start


def told(values):
    return {"median": statistics.median(values), "interval min-max": [min(values), max(values)], "n": len(values)}


def measure(name):
    torch.manual_seed(0)
    model = build_model(name, classes=10).eval()
    layout = fastest_memory_format(model)
    model = model.to(memory_format=layout)
    images = torch.randn(IMAGES, 3, 32, 32).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (IMAGES,))
    theta = {n: p.detach().clone() for n, p in model.named_parameters()}
    directions = random_plane(theta, seed=0)
    axis = torch.tensor(even_axis(1.0, SIDE), dtype=torch.float64)
    plane = torch.cartesian_prod(axis, axis)
    points = plane[torch.linspace(0, len(plane) - 1, POINTS[name]).round().long()]
    rows = []
    for size in BATCHES:
        batches = list(zip(images.split(size), labels.split(size), strict=True))
        objective = ModelObjective(model, batches)
        start = time.process_time()
        way = fastest(objective, theta, directions, plane)
        trials = time.process_time() - start
        plain, ours = plain_loop(model, batches, directions), evaluator(objective, theta, directions, way)
        difference = max(abs(a - b) / abs(b) for a, b in zip(ours(points), plain(points), strict=True))
        seconds = [(cpu_seconds(plain, points), cpu_seconds(ours, points)) for _ in range(ROUNDS)]
        whole = len(plane) / len(points)
        rows.append(
            {
                "images a batch": size,
                "way": str(way),
                "plain loop, points/s": told([len(points) / p for p, _ in seconds]),
                "ours, points/s": told([len(points) / o for _, o in seconds]),
                "ratio": told([p / o for p, o in seconds]),
                "finding the way, CPU s": trials,
                f"ratio over {SIDE} x {SIDE} points, finding included": told(
                    [whole * p / (whole * o + trials) for p, o in seconds]
                ),
                "largest relative difference of a loss": difference,
            }
        )
        print(name, json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "what": "points of a loss landscape a second, CPU time, one thread; 1,000 images of 3 x 32 x 32",
        "points a round": POINTS,
        "models": {name: measure(name) for name in ("mlp", "resnet8")},
        "environment": environment(),
    }
    if arguments.out:
        write_atomically(arguments.out, (json.dumps(result, indent=1) + "\n").encode())
