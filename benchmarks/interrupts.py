"""Does a signal at any moment of a step leave theta + eps behind? Real ones, at random moments, until so many struck.

    python benchmarks/interrupts.py [--signals 50000] [--methods sam esam slicesam]

At learning rate 0 theta never changes, so the weights are compared bit for bit in the handler's wake, and an interrupt
must stay a KeyboardInterrupt. ``tests/test_contract.py`` strikes at every call of a perturbation.
"""

import argparse
import random
import signal
import time

import torch
import torch.nn.functional as F
from torch import nn

from esam import METHODS


def interrupt(*_):
    raise KeyboardInterrupt


def strike(name, signals, seed=0):
    """Return how many signals struck a step, left other weights behind, and became another error."""
    chance = random.Random(seed)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 5))
    x, y = torch.randn(64, 32), torch.randint(0, 5, (64,))
    optimizer = METHODS[name](torch.optim.SGD(model.parameters(), lr=0.0), model, seed=0)

    def loss_of(x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    theta = [w.detach().clone() for w in model.parameters()]
    struck = left = changed = 0
    while struck < signals:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 8e-3))
            for _ in range(4):
                optimizer.step(loss_of, x, y)
            time.sleep(0.01)
        except KeyboardInterrupt:
            struck += 1
        except Exception as error:
            print(f"{name}: an interrupt became {error!r}")
            struck, changed = struck + 1, changed + 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if not all(torch.equal(w, t) for w, t in zip(model.parameters(), theta, strict=True)):
            left += 1
            with torch.no_grad():
                for w, t in zip(model.parameters(), theta, strict=True):
                    w.copy_(t)
    return struck, left, changed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", type=int, default=50_000)
    parser.add_argument("--methods", nargs="+", default=["sam", "esam", "slicesam"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, interrupt)
    each = -(-arguments.signals // len(arguments.methods))
    for method in arguments.methods:
        struck, left, changed = strike(method, each)
        print(f"{method}: {struck:,} signals, {left} left theta + eps behind, {changed} became another error")
