"""``esam compare``: several methods and seeds, alike in all else; a table and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from esam.compare.plan import DEFAULT_METHODS
from esam.compare.where import Where
from esam.train.config import Config

from .parsing import parse_run, settings_by_method, take_recipe


@dataclass(frozen=True)
class CompareOptions:
    """Several methods and seeds on the same data, order, initial weights and budget. Interrupted, it resumes."""

    config: tyro.conf.OmitArgPrefixes[Config]
    methods: tuple[str, ...] = DEFAULT_METHODS
    """Methods to compare, by their names in `esam methods`; base is the base optimizer alone."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of each method for each seed."""
    set: tuple[str, ...] = ()
    """What differs for a method, as in sam.rho=0.1 esam.gamma=0.7."""
    out: Path = Path("runs/compare")
    """Folder of the runs and of report.html."""
    jobs: int = 1
    """Runs at a time on this machine; a cluster does as many as it has room for."""
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)
    tune: int = 0
    """Values of rho to try for each method on held-out training data, before the runs; 4 is a good number, 0: none.

    The search's runs are beside OUT, in OUT-tuning."""


def compare(arguments: list[str]) -> None:
    """``esam compare``: several methods and seeds, a table and a report."""
    recipe = take_recipe(arguments)
    given = {"methods": recipe.methods, "seeds": recipe.seeds} if recipe else {}
    start = recipe.config if recipe else Config()
    options, config = parse_run("compare", CompareOptions, arguments, start, **given)
    from rich.console import Console

    from esam.compare.check import check
    from esam.compare.launch import Launcher, divergences
    from esam.compare.live import show_results, watch
    from esam.compare.plan import Comparison, PlannedRun, plan
    from esam.compare.tune import tried_sheet, tune
    from esam.report import write_report
    from esam.report.sheets import as_text

    settings = {method: dict(own) for method, own in recipe.settings.items()} if recipe else {}
    for method, own in settings_by_method(options.set).items():
        settings[method] = {**settings.get(method, {}), **own}
    console = Console()
    comparison = Comparison(config, options.methods, options.seeds, settings)
    check(plan(comparison, options.out), options.out)
    with options.where.place(options.jobs) as place:

        def launch(runs: Sequence[PlannedRun]) -> None:
            watch(Launcher(runs, place=place), console)

        if options.tune:
            beside = options.out.with_name(f"{options.out.name}-tuning")  # the report is about the other runs
            comparison, tried = tune(comparison, beside, options.tune, launch)
            console.print(as_text(tried_sheet(tried)), "", highlight=False, markup=False, sep="\n")
        runs = plan(comparison, options.out)
        failure: RuntimeError | None = None
        try:
            launch(runs)
        except RuntimeError as error:  # what the other runs gave is shown all the same
            failure = error
    if any(run.record() for run in runs):
        show_results(runs, console)
        console.print(f"report: {write_report(options.out)}", highlight=False, markup=False, soft_wrap=True)
    if failure is not None:
        raise failure
    if diverged := divergences(runs):
        raise RuntimeError("\n".join([f"{len(diverged)} of {len(runs)} runs diverged:", *diverged]))
