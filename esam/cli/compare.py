"""``esam compare``: several methods and seeds, alike in all else; a table and a report."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from esam.report.sheets import Form
from esam.runs.plan import DEFAULT_METHODS, Comparison, PlannedRun
from esam.runs.ray import ClusterOptions
from esam.train.config import Config

from .parsing import FIXED, parse_run, settings_by_method


@dataclass(frozen=True)
class SharedConfig(Config):
    """What the runs of a comparison share: all but the method and the seed, which --methods and --seeds name."""

    method: Annotated[str, FIXED] = Config.method
    seed: Annotated[int, FIXED] = 0


@dataclass(frozen=True)
class CompareOptions:
    """Several methods and seeds on the same data, order, initial weights and budget. Interrupted, it resumes."""

    config: SharedConfig
    methods: tuple[str, ...] = DEFAULT_METHODS
    """Methods to compare, by their names in `esam methods`; base is the base optimizer alone."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """How many seeds (3: 0 1 2), or which (0 5 7, or 5..7); one run of each method for each."""
    set: tuple[str, ...] = ()
    """What differs for a method, as in sam.rho=0.1 esam.gamma=0.7."""
    out: Path = Path("runs/compare")
    """Folder of the runs and of report.html."""
    jobs: int = 1
    """Runs at a time on this machine; a cluster does as many as it has room for."""
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    tune: int = 0
    """Trials of each method on held-out training data, before the runs; 4 is a good number, 0: none. A best value at
    the edge of those tried is followed by up to 3 trials more, for every method.

    The trials' runs are beside OUT, in OUT-tuning."""
    tune_over: tuple[Literal["rho", "lr", "weight_decay", "epochs"], ...] = ("rho",)
    """What the trials vary; the base optimizer too gets its lr, weight_decay and epochs by as many trials."""
    quiet: bool = False
    """Print the result alone."""
    format: Form = "table"
    """How the result is printed; other than as a table, everything else goes to the error channel."""


def compare(arguments: list[str]) -> None:
    """``esam compare``: several methods and seeds, a table and a report."""
    given = ("methods", "seeds", "tune", "tune_over")
    options, config, recipe = parse_run("compare", CompareOptions, arguments, shape=SharedConfig, of_recipe=given)
    settings = {method: dict(own) for method, own in recipe.settings.items()} if recipe else {}
    for method, own in settings_by_method(options.set).items():
        settings[method] = {**settings.get(method, {}), **own}
    comparison = Comparison(
        config, options.methods, options.seeds, settings, tune=options.tune, tune_over=options.tune_over
    )
    if options.tune_over != ("rho",) and not options.tune and recipe is None:
        raise ValueError("--tune-over says what a search looks for, and there is none; add --tune 4")
    if config.epochs < 1:
        raise ValueError(f"a comparison takes 1 epoch or more, got {config.epochs}")
    from esam.runs.plan import plan
    from esam.runs.preflight import check
    from esam.runs.tuning import first_points, search_folder, trial_runs

    runs = plan(comparison, options.out)
    _check_reached(options, runs)
    points = first_points(comparison, options.tune, options.tune_over) if options.tune else {}
    searched = trial_runs(comparison, points, search_folder(options.out))
    check([*runs, *(run for several in searched.values() for run in several)], options.out)
    _run(comparison, options)


def _run(comparison: Comparison, options: CompareOptions) -> None:
    from rich.console import Console

    from esam.report.page import write_report
    from esam.report.results import results_text
    from esam.report.summaries import summarise
    from esam.runs.live import print_line, run_and_show, show_results
    from esam.runs.pool import Pool, divergences
    from esam.runs.tuning import tuned_runs
    from esam.train.config import describe_method, describe_run

    aside = Console(stderr=options.format != "table", quiet=options.quiet)

    say = functools.partial(print_line, aside)
    failure: RuntimeError | None = None
    with options.cluster.executor(options.jobs, reuse=True) as executor:
        pool = Pool(executor=executor)

        def launch(runs: Sequence[PlannedRun]) -> None:
            run_and_show(pool, runs, aside)

        runs = tuned_runs(comparison, options.out, launch, lambda table: say(f"{table}\n"))
        say(f"{len(runs)} run{'s' if len(runs) > 1 else ''}, each {describe_run(comparison.config)}")
        for method, config in {run.config.method: run.config for run in runs}.items():
            say(f"  {method}: {describe_method(config)}")
        try:
            launch(runs)
        except RuntimeError as error:  # what the other runs gave is shown all the same
            failure = error
    if records := [record for run in runs if (record := run.record()) is not None]:
        report = f"report: {write_report(options.out)}"
        if options.format == "table":
            console = Console()
            show_results(runs, console)
            print_line(console, report)
        else:
            print(results_text(summarise(records), options.format))
            say(report)
    if failure is not None:
        raise failure
    if diverged := divergences(runs):
        raise RuntimeError("\n".join([f"{len(diverged)} of {len(runs)} runs diverged:", *diverged]))


def _check_reached(options: CompareOptions, runs: list[PlannedRun]) -> None:
    """Refuse a method's setting that was typed and that no run has a use for."""
    used = {name for run in runs for name in run.config.settings}
    for name in vars(options):
        typed = name not in CompareOptions.__dataclass_fields__ and getattr(options, name) is not None
        if typed and name not in used:
            raise ValueError(f"none of {', '.join(options.methods)} takes --{name.replace('_', '-')}; leave it out")
