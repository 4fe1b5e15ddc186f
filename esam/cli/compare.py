"""``esam compare``: several methods and seeds, alike in all else; a table and a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from esam.compare.plan import DEFAULT_METHODS
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
    """Runs at a time."""
    tune: int = 0
    """Trials of each method on held-out training data, before the runs; 4 is a good number, 0: none.

    The search's runs are beside OUT, in OUT-tuning."""
    tune_over: tuple[Literal["rho", "lr", "weight_decay"], ...] = ("rho",)
    """What the trials look for; the base optimizer too gets its lr and weight_decay by as many trials."""


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
    from esam.compare.plan import Comparison, plan
    from esam.compare.tune import tell_search, trials, tune
    from esam.report import write_report
    from esam.report.sheets import as_text
    from esam.report.tuned import tried_sheet

    settings = {method: dict(own) for method, own in recipe.settings.items()} if recipe else {}
    for method, own in settings_by_method(options.set).items():
        settings[method] = {**settings.get(method, {}), **own}
    console = Console()
    comparison = Comparison(config, options.methods, options.seeds, settings)
    if options.tune_over != ("rho",) and not options.tune:
        raise ValueError("--tune-over says what a search looks for, and there is none; add --tune 4")
    beside = options.out.with_name(f"{options.out.name}-tuning")  # the report is about the other runs
    searched = trials(comparison, beside, options.tune, options.tune_over) if options.tune else {}
    runs = [run for several in searched.values() for run, _ in several]
    check([*plan(comparison, options.out), *runs], options.out)
    if options.tune:
        launch = lambda runs: watch(Launcher(runs, jobs=options.jobs), console)  # noqa: E731
        comparison, _ = tune(comparison, beside, options.tune, launch, options.tune_over)
        console.print(as_text(tried_sheet(comparison.tuned)), "", highlight=False, markup=False, sep="\n")
    runs = plan(comparison, options.out)
    tell_search(runs)
    failure: RuntimeError | None = None
    try:
        watch(Launcher(runs, jobs=options.jobs), console)
    except RuntimeError as error:  # what the other runs gave is shown all the same
        failure = error
    if any(run.record() for run in runs):
        show_results(runs, console)
        console.print(f"report: {write_report(options.out)}", highlight=False, markup=False, soft_wrap=True)
    if failure is not None:
        raise failure
    if diverged := divergences(runs):
        raise RuntimeError("\n".join([f"{len(diverged)} of {len(runs)} runs diverged:", *diverged]))
