"""``esam sweep``: which setting? A search with Optuna, by one worker or by many."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from esam.runs.ray import ClusterOptions
from esam.train.config import Config

from .parsing import parse_run, take_recipe
from .train import suited_length

if TYPE_CHECKING:
    from esam.runs.plan import Comparison
    from esam.runs.sweep import SharedStudy

SEED = 100
"""Of the trials: a comparison's own seeds are likely to be others."""


@dataclass(frozen=True)
class SweepOptions:
    """A search for settings, judged on held-out training data. Interrupted, the same command resumes."""

    config: Config
    search: tuple[str, ...] = ()
    """What to search, as in lr=0.01..1:log rho=0.05,0.1 method=sam,esam; without a word and with --sampler grid, the
    grid of the paper's appendix."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """How the next trial is chosen."""
    trials: int = 20
    """Trials in all, whoever does them; a grid has as many as it has points."""
    objectives: tuple[str, ...] = ("accuracy",)
    """One, or several for a front: accuracy, loss, seconds, cost (passes, counted), memory, sharpness."""
    prune: bool = False
    """End a trial that is worse than the median of the earlier ones at the same epoch."""
    out: Path = Path("runs/sweep")
    """Folder of the runs, of the database unless --storage names another, and of report.html."""
    storage: str = ""
    """Database of the search: sqlite:///FILE, or postgresql://USER@HOST/NAME for workers on many machines."""
    study: str = "sweep"
    """Name of the search in the database."""
    join: str = ""
    """Take part in the search in this database; all that is searched is as it says there."""
    allow: tuple[str, ...] = ()
    """With --join: functions of your own, package.module:function, that the search may import."""
    heartbeat: int = 20
    """Seconds between a trial's signs of life; after three without one, another worker takes it up."""
    jobs: int = 1
    """Trials at a time, here or on a cluster."""
    cluster: ClusterOptions = field(default_factory=ClusterOptions)


def sweep(arguments: list[str]) -> None:
    """``esam sweep``: trials until all have ended, a table and a page."""
    recipe = take_recipe(arguments)
    start = recipe.config if recipe else Config()
    options, config = parse_run("sweep", SweepOptions, [*arguments], replace(start, seed=SEED))
    if recipe is None and not options.join:
        config = suited_length(config, arguments)
    try:
        from esam.runs.sweep import shown, trials_sheet, write_search
    except ModuleNotFoundError as error:
        raise ImportError(f"esam sweep needs {error.name}; run: pip install torch-esam[sweep]") from error
    from esam.report.sheets import as_text

    shared = _joined(options) if options.join else _created(options, config, recipe)
    _tell(f"study {shared.name} in {shown(shared.url)}; to take part: esam sweep --join URL")
    with options.cluster.executor(options.jobs) as executor:
        shared.work(options.out, executor, jobs=options.jobs, tell=_tell)
    if not shared.done():
        raise RuntimeError(f"no trial came to its end; see above, and the log.txt of the runs in {options.out}")
    _tell(f"\n{as_text(trials_sheet(shared))}\n\nreport: {write_search(shared, options.out)}")


def _tell(line: str) -> None:
    print(line, flush=True)


def _created(options: Any, config: Config, recipe: Comparison | None) -> SharedStudy:
    from esam.runs.plan import PlannedRun
    from esam.runs.preflight import check
    from esam.runs.sweep import PAPER_GRID, Search, SharedStudy

    words = options.search or (PAPER_GRID if options.sampler == "grid" else ())
    search = Search(
        config=replace(config, validation=True),
        words=tuple(words),
        sampler=options.sampler,
        trials=options.trials,
        objectives=options.objectives,
        prune=options.prune,
        settings=recipe.settings if recipe else {},
        heartbeat=options.heartbeat,
    )
    check([PlannedRun(search.with_choice({}), options.out / "first")], options.out)
    url = options.storage or f"sqlite:///{(options.out / 'sweep.db').absolute()}"
    return SharedStudy.create(url, options.study, search)


def _joined(options: Any) -> SharedStudy:
    from esam.runs.sweep import SharedStudy

    shared = SharedStudy.join(options.join, None if options.study == "sweep" else options.study)
    if asked := sorted(shared.search.functions() - {*options.allow, options.config.model, options.config.data}):
        raise ValueError(
            f"the search wants to import {', '.join(asked)}, and a database's word is no reason to run it: add --allow "
            f"{' '.join(asked)}"
        )
    return shared
