"""``esam sweep``: which setting? A search with Optuna, by one worker or by many."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from esam.runs.plan import SEED, PlannedRun
from esam.runs.ray import ClusterOptions

from .parsing import parse_run


@dataclass(frozen=True)
class SweepOptions:
    """A search for settings, judged on held-out training data. The same command resumes it, or takes part in it."""

    search: tuple[str, ...] = ()
    """What to search, as in lr=0.01..1:log rho=0.05,0.1 method=sam,esam."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """How the next trial is chosen."""
    trials: int = 20
    """Trials in all, whoever does them; a grid has as many as it has points."""
    objective: Literal["accuracy", "loss"] = "accuracy"
    """What trials are judged by, on held-out training data."""
    prune: bool = False
    """End a trial that is worse than the median of the earlier ones at the same epoch."""
    out: Path = Path("runs/sweep")
    """Folder of the runs, and of the database unless --storage names another."""
    storage: str = ""
    """Database of the search: sqlite:///FILE, or postgresql://USER@HOST/NAME. On many machines, the same command with
    the same database is a worker of the same search."""
    jobs: int = 1
    """Trials at a time, here or on a cluster."""


def sweep(arguments: list[str]) -> None:
    """``esam sweep``: trials until all have ended, and a table."""
    options, comparison, _, cluster = parse_run("sweep", SweepOptions, arguments, ClusterOptions, seed=SEED)
    try:
        from esam.runs.sweep import Search, Sweep, shown_url, trials_sheet
    except ModuleNotFoundError as error:
        raise ImportError(f"esam sweep needs {error.name}; run: pip install torch-esam[sweep]") from error
    from esam.report.sheets import as_text
    from esam.runs.preflight import check

    described = {name: getattr(options, name) for name in ("sampler", "trials", "objective", "prune")}
    search = Search(comparison, options.search, **described)
    check([PlannedRun(search.config({}), options.out / "first")], options.out, report=False)
    url = options.storage or f"sqlite:///{(options.out / 'sweep.db').absolute()}"
    shared = Sweep(search, url)

    tell = functools.partial(print, flush=True)
    tell(f"{shared.study.study_name} in {shown_url(url)}; the same command elsewhere takes part in it")
    with cluster.executor(options.jobs, reuse=True) as executor:
        shared.work(options.out, executor, jobs=options.jobs, tell=tell)
    if not shared.best_first():
        raise RuntimeError(f"no trial came to its end; see above, and the log.txt of the runs in {options.out}")
    tell(f"\n{as_text(trials_sheet(shared))}")
