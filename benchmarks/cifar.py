"""What do the methods give on real images? CIFAR-10, clean and with 20 % wrong labels, where SGD fits it.

    ESAM_DATA=<folder with cifar10/> python benchmarks/cifar.py [--jobs 2] [--out results/cifar10]

A ResNet-8 on 2,500 images, 40 epochs, batch 64, no augmentation. First rho is tuned for each method and condition by
the same small search: 20 epochs, one seed, accuracy on held-out training images. Then three seeds of each on the test
set. Interrupted, it goes on where it was.
"""

import argparse
import dataclasses
from pathlib import Path

from esam.compare import Comparison, Launcher, plan
from esam.report.table import summarise
from esam.train import Config

METHODS = ("sgd", "sam", "esam", "esam-swp", "esam-sds")
RHOS = (0.05, 0.1, 0.2)
SEEDS = (0, 1, 2)
COMMON = Config(
    data="uoft-cs/cifar10",
    model="resnet8",
    epochs=40,
    batch_size=64,
    train_size=2_500,
    evaluate_every=10,
    threads=1,
)


def tuned(noise: float, folder: Path, jobs: int) -> dict[str, dict[str, float]]:
    """Return the best rho of each method by held-out accuracy."""
    common = dataclasses.replace(COMMON, label_noise=noise, epochs=20, evaluate_every=20, validation=True)
    runs = [
        run for rho in RHOS for run in plan(dataclasses.replace(common, rho=rho), METHODS[1:], [100], folder / "search")
    ]
    Launcher(runs, jobs=jobs)()
    best = {}
    for method in METHODS[1:]:
        scores = {r.config.rho: r.record().end["test_accuracy"]["last"] for r in runs if r.config.method == method}
        best[method] = {"rho": max(scores, key=scores.get)}
        print(f"label noise {noise}: {method} {scores} -> {best[method]}", flush=True)
    return best


def main(out: Path, jobs: int) -> None:
    runs = []
    for noise in (0.0, 0.2):
        settings = tuned(noise, out, jobs)
        common = dataclasses.replace(COMMON, label_noise=noise)
        runs += plan(Comparison(common, METHODS, SEEDS, settings), out / "runs")
    runs.sort(key=lambda r: r.config.seed)  # whole comparisons first, if time is short
    Launcher(runs, jobs=jobs)()
    for row in summarise([r.record() for r in runs]):
        print(row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/cifar10"))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.out, arguments.jobs)
