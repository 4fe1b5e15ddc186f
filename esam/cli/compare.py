"""``esam compare``: several methods and seeds, alike in all else; a table and a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


def compare(arguments: list[str]) -> None:
    """``esam compare``: several methods and seeds, a table and a report."""
    recipe = take_recipe(arguments)
    given = {"methods": recipe.methods, "seeds": recipe.seeds} if recipe else {}
    start = recipe.config if recipe else Config()
    options, config = parse_run("compare", CompareOptions, arguments, start, **given)
    from rich.console import Console

    from esam.compare.launch import Launcher
    from esam.compare.live import show_results, watch
    from esam.compare.plan import Comparison, plan
    from esam.report import write_report

    settings = {method: dict(own) for method, own in recipe.settings.items()} if recipe else {}
    for method, own in settings_by_method(options.set).items():
        settings[method] = {**settings.get(method, {}), **own}
    runs = plan(Comparison(config, options.methods, options.seeds, settings), options.out)
    console = Console()
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
