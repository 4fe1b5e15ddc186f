"""``esam sweep``: which setting? A search with Optuna, by one worker or by many."""

from __future__ import annotations

from esam.report.sheets import as_text
from esam.runs.plan import SEED, PlannedRun, trial_config
from esam.runs.preflight import check
from esam.runs.sweep import Sweep, SweepOptions, shown_url

from .parsing import parse_run


def sweep(arguments: list[str]) -> None:
    """``esam sweep``: trials until all have ended, and a table."""
    options, comparison, _ = parse_run("sweep", SweepOptions, arguments, seed=SEED)
    shared, config = Sweep(comparison, options), comparison.config
    first = trial_config(comparison, config.method, {}, config.seed)
    check([PlannedRun(first, options.out / "first")], options.out, report=False)
    print(
        f"{shared.study.study_name} in {shown_url(shared.url)}; the same command elsewhere takes part in it", flush=True
    )
    shared.work()
    if not shared.best_first():
        raise RuntimeError("no trial came to its end; see above")
    print(as_text(shared.sheet()))
