"""What do the methods and their control give on real images? CIFAR-10, clean and with 20 % wrong labels, and CIFAR-100.

    ESAM_DATA=<folder with cifar10/ and cifar100/> python benchmarks/cifar.py [--jobs 2] [--out runs/cifar]

The recipes cifar10-small, cifar10-small-noisy and cifar100-small, three seeds each, and before the first two the search
for rho: the best of three by the accuracy on held-out training images after 20 epochs. Interrupted, it resumes.
What is committed is packed by benchmarks/pack_records.py.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from esam.recipes.cifar import cifar10_small, cifar10_small_noisy, cifar100_small
from esam.runs import Comparison, Pool, plan
from esam.runs.live import show_results

SEARCHED = ("sam", "esam", "esam-swp", "esam-sds")
"""Methods whose rho was searched for; esam-random takes 0.05, untuned, and slicesam its default."""


def best_rho(final, folder, jobs):
    """Return each method's best rho by held-out accuracy: 20 epochs, one seed, the same for each."""
    config = replace(final.config, epochs=20, evaluate_every=20, validation=True)
    tried = [Comparison(replace(config, settings={"rho": rho}), SEARCHED, seeds=(100,)) for rho in (0.05, 0.1, 0.2)]
    runs = [run for comparison in tried for run in plan(comparison, folder)]
    Pool(jobs).run(runs)
    best = {}
    for method in SEARCHED:
        mine = [r for r in runs if r.config.method == method]
        scores = {r.config.settings["rho"]: r.record().end["test_accuracy"]["last"] for r in mine}
        best[method] = max(scores, key=scores.get)
        print(f"label noise {final.config.label_noise}: {method} {scores} -> {best[method]}", flush=True)
    return best


def main(out, jobs):
    runs = plan(cifar100_small(), out / "cifar100" / "runs")
    for final in (cifar10_small(), cifar10_small_noisy()):
        found = best_rho(final, out / "cifar10" / "search", jobs)
        used = {method: final.settings[method]["rho"] for method in SEARCHED}
        if found != used:
            raise SystemExit(f"the recipe's rho {used} is not what the search found: {found}")
        runs += plan(final, out / "cifar10" / "runs")
    runs.sort(key=lambda run: run.config.seed)  # whole comparisons first
    Pool(jobs).run(runs)
    show_results(runs, Console(width=200))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/cifar"))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.out, arguments.jobs)
