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
VARIANTS = (
    ("exact", "independent"),  # the paper's
    ("random", "suffix"),
    ("random", "independent"),
    ("gradient", "independent"),
    ("gradient", "suffix"),
    ("loss", "independent"),
    ("aligned", "independent"),
)


def variant(config, ranking, choose):
    """Return the comparison that holds one form of ESAM."""
    return Comparison(dataclasses.replace(config, rho=RHO, ranking=ranking, choose=choose), ("esam",))


def runs_of(config, folder):
    """Return the runs of one dataset: SGD, SAM, SWP by suffix, and ESAM in every form."""
    base = Comparison(config, ("sgd", "sam"), settings={"sam": {"rho": RHO}})
    swp = Comparison(dataclasses.replace(config, rho=RHO, choose="suffix"), ("esam-swp",))
    return [run for c in (base, *(variant(config, *v) for v in VARIANTS), swp) for run in plan(c, folder)]


def main(out, jobs):
    clean = cifar10_small().config
    runs = runs_of(clean, out) + runs_of(dataclasses.replace(clean, data="uoft-cs/cifar100"), out)
    runs += plan(variant(cifar10_small_noisy().config, *VARIANTS[1]), out)
    runs.sort(key=lambda run: run.config.seed)  # whole comparisons first
    Launcher(runs, jobs=jobs)()
    show_results(runs, Console(width=200))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/cifar10"))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.out / "runs", arguments.jobs)
