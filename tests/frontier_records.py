"""Records of an arena that never ran, for tests of what is made from them."""

import random

from esam.frontier.entrants import ENTRANTS
from esam.frontier.regimes import REGIMES
from esam.frontier.search import Point, final
from esam.optim import METHODS
from esam.train.record import encode


def write_run(folder, regime, entrant, seed, accuracy, *, seconds=10.0, train=0.9, status="finished", loss=0.1):
    """Write the record of a run as the arena would."""
    config = final(REGIMES[regime], ENTRANTS[entrant], Point(), seed)
    path = folder / regime / entrant / "runs" / f"{config.method}-seed{seed}-{config.id()}" / "record.jsonl"
    base = {"sgd": "SGD", "adamw": "AdamW"}[config.optimizer]
    first = {"name": METHODS[config.method].named(base), "method": config.method, "seed": seed}
    run = {"kind": "run", "format": 1, **first, "config": config.as_json(), "environment": {"hardware": "none"}}
    passes = config.epochs * METHODS[config.method].units(config.settings) / 3
    epoch = {"kind": "epoch", "epoch": config.epochs, "test_accuracy": accuracy, "train_loss": loss}
    end = {
        "kind": "end",
        "status": status,
        "test_accuracy": {"last": accuracy, "best": accuracy + 0.01},
        "train_accuracy": train,
        "cpu_seconds": seconds,
        "forwards": passes,
        "backwards": passes,
    }
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(map(encode, (run, epoch, end))))


def write_arena(folder, *, seeds=(0, 1, 2), regimes=tuple(REGIMES), screened=("fits", "wrong20", "text"), dropped=()):
    """Write a whole map: an accuracy for each entrant that depends on its cost, with some noise."""
    stream = random.Random(1)
    for regime in regimes:
        start = stream.uniform(0.3, 0.9)
        for name, entrant in ENTRANTS.items():
            if name in dropped and regime not in screened:
                continue
            gain = stream.gauss(0.01 * entrant.units(), 0.01)
            for seed in seeds if name not in dropped else (0,):
                accuracy = start + gain + stream.gauss(0, 0.005)
                seconds = 10 * entrant.units() * stream.uniform(0.95, 1.1)
                write_run(folder, regime, name, seed, accuracy, seconds=seconds)
