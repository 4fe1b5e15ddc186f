"""``esam sweep``: which setting? A search with Optuna, by one worker or by many."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from esam.compare.tune import SEED
from esam.compare.where import Where
from esam.train.config import Config

from .parsing import parse_run, take_recipe

if TYPE_CHECKING:
    from esam.compare.plan import Comparison
    from esam.sweep.study import SharedStudy


@dataclass(frozen=True)
class SweepOptions:
    """A search for settings, judged on held-out training data. Interrupted, the same command resumes."""

    config: tyro.conf.OmitArgPrefixes[Config]
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
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)


def sweep(arguments: list[str]) -> None:
    """``esam sweep``: trials until all have ended, a table and a page."""
    recipe = take_recipe(arguments)
    start = recipe.config if recipe else Config()
    options, config = parse_run("sweep", SweepOptions, arguments, replace(start, seed=SEED))
    try:
        from esam.sweep.page import trials_sheet, write_search
        from esam.sweep.study import shown
        from esam.sweep.work import Worker
    except ModuleNotFoundError as error:
        raise ImportError(f"esam sweep needs {error.name}; run: pip install torch-esam[sweep]") from error
    from esam.report.sheets import as_text

    shared = _joined(options) if options.join else _created(options, config, recipe)
    _tell(f"study {shared.name} in {shown(shared.url)}; to take part: esam sweep --join URL")
    with options.where.place(options.jobs) as place:
        Worker(shared, options.out, place, jobs=options.jobs, tell=_tell)()
    if not shared.done():
        raise RuntimeError(f"no trial came to its end; see above, and the log.txt of the runs in {options.out}")
    _tell(f"\n{as_text(trials_sheet(shared))}\n\nreport: {write_search(shared, options.out)}")


def _tell(line: str) -> None:
    print(line, flush=True)


def _created(options: Any, config: Config, recipe: Comparison | None) -> SharedStudy:
    from esam.compare.check import check
    from esam.compare.plan import PlannedRun
    from esam.sweep.search import Search
    from esam.sweep.space import PAPER_GRID, with_choice
    from esam.sweep.study import SharedStudy

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
    ).check()
    check([PlannedRun(with_choice(search.start, {}), options.out / "first")], options.out)
    url = options.storage or f"sqlite:///{(options.out / 'sweep.db').absolute()}"
    return SharedStudy.create(url, options.study, search)


def _joined(options: Any) -> SharedStudy:
    from esam.sweep.study import SharedStudy

    shared = SharedStudy.join(options.join, None if options.study == "sweep" else options.study)
    if asked := sorted(shared.search.functions() - {*options.allow, options.config.model, options.config.data}):
        raise ValueError(
            f"the search wants to import {', '.join(asked)}, and a database's word is no reason to run it: add --allow "
            f"{' '.join(asked)}"
        )
    return shared
