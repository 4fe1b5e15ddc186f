"""Which ranking and which draw should ESAM take by itself? CIFAR-10 and CIFAR-100, three seeds of each.

    ESAM_DATA=<folder with cifar10/ and cifar100/> python benchmarks/default_choice.py [--jobs 2]

The recipe cifar10-small, and the same on CIFAR-100, for SGD, SAM and every combination worth its price; one rho for
all, the one that the search behind the recipe found. Interrupted, it goes on where it was; runs are known by their
configuration, and shared with benchmarks/cifar.py.
"""

import argparse
import dataclasses
from pathlib import Path

from rich.console import Console

from esam.compare import Comparison, Launcher, plan
from esam.compare.live import show_results
from esam.recipes.cifar import cifar10_small, cifar10_small_noisy

RHO = 0.05
CANDIDATES = (("exact", "independent"), ("random", "suffix"), ("random", "independent"), ("gradient", "independent"))
"""What is compared on both datasets: the paper's form first."""
OTHERS = (("loss", "independent"), ("aligned", "independent"))


def form(config, ranking, choose, folder):
    """Return the runs of ESAM in one form."""
    return plan(Comparison(dataclasses.replace(config, rho=RHO, ranking=ranking, choose=choose), ("esam",)), folder)


def candidates(config, folder):
    """Return the runs that choose the default on one dataset: SGD and SAM beside the candidates."""
    runs = plan(Comparison(config, ("sgd", "sam"), settings={"sam": {"rho": RHO}}), folder)
    return runs + [run for pair in CANDIDATES for run in form(config, *pair, folder)]


def main(results, jobs):
    config, out = cifar10_small().config, results / "cifar10" / "runs"
    hundred = candidates(dataclasses.replace(config, data="uoft-cs/cifar100"), results / "cifar100" / "runs")
    runs = candidates(config, out) + hundred
    others = [run for pair in OTHERS for run in form(config, *pair, out)]
    others += plan(Comparison(dataclasses.replace(config, rho=RHO, choose="suffix"), ("esam-swp",)), out)
    others += form(cifar10_small_noisy().config, "random", "suffix", out)
    runs.sort(key=lambda run: run.config.seed)  # whole comparisons first
    Launcher(runs + others, jobs=jobs)()
    show_results(runs + others, Console(width=200))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.out, arguments.jobs)
