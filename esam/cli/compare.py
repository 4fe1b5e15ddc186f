"""``esam compare``: several methods and seeds, alike in all else; a table and a report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from esam.report.sheets import Form
from esam.runs.plan import DEFAULT_METHODS, Comparison, PlannedRun, plan
from esam.runs.pool import Processes
from esam.runs.ray import RayCluster, ray_cluster

from .parsing import UsageError, check_taken, parse_run, settings_by_method

MOST_SEEDS = 1_000


@dataclass(frozen=True)
class CompareOptions:
    """Several methods and seeds on the same data, order, initial weights and budget. Interrupted, it resumes."""

    methods: tuple[str, ...] = DEFAULT_METHODS
    """Methods to compare, by their names in `esam methods`; base is the base optimizer alone."""
    seeds: tuple[str, ...] = ("3",)
    """How many seeds (3: 0 1 2), or which (0 5 7, or 5..7); one run of each method for each."""
    set: tuple[str, ...] = ()
    """What differs for a method, as in sam.rho=0.1 esam.gamma=0.7."""
    out: Path = Path("runs/compare")
    """Folder of the runs and of report.html."""
    jobs: int = 1
    """Runs at a time on this machine; a cluster does as many as it has room for."""
    cluster: str = ""
    """Do the runs on a Ray cluster: `ray` (that of RAY_ADDRESS, else one started on this machine), or its address, as
    in ray://host:10001 or host:6379. All nodes must share the output folder. Not given: processes on this machine."""
    cpus_per_run: float = 1.0
    """CPUs for each run on a cluster."""
    gpus_per_run: float = 0.0
    """GPUs for each run on a cluster; 0.5 lets two runs share one."""
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
    options, comparison, typed = parse_run("compare", CompareOptions, arguments)
    asked = {name: getattr(options, name) for name in ("methods", "tune", "tune_over")}
    if "seeds" in typed:
        asked["seeds"] = read_seeds(options.seeds)
    settings = {**comparison.settings}
    for method, chosen in settings_by_method(options.set).items():
        settings[method] = {**settings.get(method, {}), **chosen}
    comparison = replace(comparison, settings=settings, **asked)
    if "tune_over" in typed and not comparison.tune:
        raise ValueError("--tune-over says what a search looks for, and there is none; add --tune 4")
    if comparison.config.epochs < 1:
        raise ValueError(f"a comparison takes 1 epoch or more, got {comparison.config.epochs}")
    from esam.runs.preflight import check
    from esam.runs.tuning import first_runs

    runs = plan(comparison, options.out)
    check_taken(comparison, typed, [run.config for run in runs])
    check([*runs, *first_runs(comparison, options.out)], options.out)
    _run(comparison, options)


def _executor(options: CompareOptions) -> AbstractContextManager[Processes | RayCluster]:
    if not options.cluster:
        return Processes(options.jobs, reuse=True)
    from esam.train.distributed import Ranks

    if Ranks.current().several:
        raise ValueError("--cluster gives each run a node, and torchrun gives each run all ranks; use one of them")
    return ray_cluster(options.cluster, cpus=options.cpus_per_run, gpus=options.gpus_per_run)


def _run(comparison: Comparison, options: CompareOptions) -> None:
    from rich.console import Console

    from esam.report.page import write_report
    from esam.report.results import answer_text, results_text
    from esam.report.summaries import summarise
    from esam.runs.live import print_line, run_and_show
    from esam.runs.tuning import tuned_runs
    from esam.train.config import describe_method, describe_run
    from esam.train.distributed import Ranks

    first = Ranks.current().first
    aside = Console(stderr=options.format != "table", quiet=options.quiet or not first)
    failure: RuntimeError | None = None
    with _executor(options) as executor:

        def launch(runs: Sequence[PlannedRun]) -> None:
            run_and_show(runs, executor, aside)

        runs = tuned_runs(comparison, options.out, launch, lambda table: print_line(aside, f"{table}\n"))
        print_line(aside, f"{len(runs)} run{'s' if len(runs) > 1 else ''}, each {describe_run(comparison.config)}")
        for method, config in {run.config.method: run.config for run in runs}.items():
            print_line(aside, f"  {method}: {describe_method(config)}")
        try:
            launch(runs)
        except RuntimeError as error:  # what the other runs gave is shown all the same
            failure = error
    records = [record for run in runs if (record := run.record()) is not None]
    if records and first:
        report, by_condition, console = write_report(options.out), summarise(records), Console()
        if options.format == "table":
            for condition, methods in by_condition.items():
                console.print(f"{answer_text(methods, condition, console.width)}\n", highlight=False, markup=False)
        else:
            print(results_text(by_condition, options.format))
            console = aside
        print_line(console, f"report: {report}")
    if failure is not None:
        raise failure
    if diverged := [record for record in records if record.diverged]:
        lines = [f"  {record.name}, seed {record.seed}: {(record.end or {}).get('error')}" for record in diverged]
        raise RuntimeError("\n".join([f"{len(diverged)} of {len(runs)} runs diverged:", *lines]))


def read_seeds(words: Sequence[str]) -> tuple[int, ...]:
    """Read seeds: one number is how many (3: 0 1 2), several are themselves, 5..7 is a range."""
    seeds: list[int] = []
    for word in words:
        first, dots, last = word.partition("..")
        try:
            low, high = int(first), int(last or first)
        except ValueError as error:
            raise UsageError(f"--seeds takes whole numbers, such as 3, 0 5 7 or 5..7, got {word!r}") from error
        new = range(low) if len(words) == 1 and not dots and low > 0 else range(low, high + 1)
        if new[MOST_SEEDS:]:
            raise UsageError(
                f"--seeds {word} are more than {MOST_SEEDS} seeds; to name a single one write {word}..{word}"
            )
        seeds += new
    return tuple(seeds)
