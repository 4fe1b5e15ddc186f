"""What do the methods give on real images? CIFAR-10, clean and with 20 % wrong labels, where SGD fits it.

    ESAM_DATA=<folder with cifar10/> python benchmarks/cifar.py [--jobs 2] [--out results/cifar10]

The recipes cifar10-small and cifar10-small-noisy, three seeds each, and before them the search for rho: the best of
three by the accuracy on held-out training images after 20 epochs. Interrupted, it goes on where it was.
"""

import argparse
from pathlib import Path

from rich.console import Console

from esam.compare import Launcher, plan
from esam.compare.live import show_results
from esam.recipes.cifar import METHODS, cifar10_small, cifar10_small_noisy, search


def best_rho(final, folder, jobs):
    """Return each method's best rho by held-out accuracy."""
    runs = [run for comparison in search(final) for run in plan(comparison, folder)]
    Launcher(runs, jobs=jobs)()
    best = {}
    for method in METHODS[1:]:
        scores = {r.config.rho: r.record().end["test_accuracy"]["last"] for r in runs if r.config.method == method}
        best[method] = max(scores, key=scores.get)
        print(f"label noise {final.config.label_noise}: {method} {scores} -> {best[method]}", flush=True)
    return best


def main(out, jobs):
    runs = []
    for final in (cifar10_small(), cifar10_small_noisy()):
        found, used = best_rho(final, out / "search", jobs), {m: s["rho"] for m, s in final.settings.items()}
        if found != used:
            raise SystemExit(f"the recipe's rho {used} is not what the search found: {found}")
        runs += plan(final, out / "runs")
    runs.sort(key=lambda run: run.config.seed)  # whole comparisons first
    Launcher(runs, jobs=jobs)()
    show_results(runs, Console(width=200))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/cifar10"))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.out, arguments.jobs)
