"""How does a search become a table and a page?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from esam.report.colours import assign_colours
from esam.report.page import filled_page
from esam.report.sheets import Sheet
from esam.report.templates import write_html
from esam.train.environment import environment

from .charts import Palette, method_of, search_charts
from .study import FAILURE, SharedStudy, shown
from .work import RUN

SHOWN = 20
PAGE = "report.html"


def best_first(shared: SharedStudy) -> list[FrozenTrial]:
    """Return the trials that came to their values, the best first; of several objectives, the front first."""
    judges, done = shared.search.judges, shared.done()
    front = {trial.number for trial in shared.study.best_trials} if len(judges) > 1 and done else set()
    sign = -1 if judges[0].direction == "maximize" else 1
    return sorted(done, key=lambda trial: (trial.number not in front, sign * trial.values[0], trial.number))


def trials_sheet(shared: SharedStudy, most: int = SHOWN) -> Sheet:
    """Return the best trials as a table."""
    search, names = shared.search, [dimension.name for dimension in shared.search.space.dimensions]
    trials = best_first(shared)[:most]
    rows = tuple(
        (
            f"trial {trial.number}",
            *(_cell(trial.params.get(name, "")) for name in names),
            *(f"{value:.4g}" for value in trial.values),
        )
        for trial in trials
    )
    return Sheet(_title(shared), ("Trial", *names, *(judge.title for judge in search.judges)), rows)


def write_search(shared: SharedStudy, out: Path) -> Path:
    """Write one self-contained page about a search, and return where it is."""
    search, done = shared.search, shared.done()
    if not done:
        raise ValueError("no trial came to its end: see the log.txt of their runs")
    best = best_first(shared)
    methods = list(dict.fromkeys(method_of(trial, search) for trial in done))
    palette = Palette(assign_colours({name: name for name in methods}))
    marks = [_mark(method_of(trial, search), palette) for trial in best[:SHOWN]]
    others = [_told(trial) for trial in shared.trials(TrialState.FAIL) if FAILURE in trial.user_attrs]
    page = filled_page(
        title=f"A search on {search.config.data}",
        lead=_title(shared),
        notes=[
            "Every trial is judged on training data that it does not train on; the test set is not looked at. The "
            "best of many trials flatters: compare it again, with seeds of its own.",
            *search.config.notes,
        ],
        chips=[(name, palette.keys[name], palette.colours[name]) for name in methods],
        sections=[
            {
                "condition": "",
                "sentences": "",
                "sheet": trials_sheet(shared),
                "drawn": marks,
                "left_out": others,
                "charts": search_charts(search, done, shared.study, palette),
            }
        ],
        common=Sheet("The search", ("Setting", "Value"), _facts(shared)),
        environment=_pairs("Where this page was made", environment()),
        differing=Sheet("Runs of the best", ("Trial", "Folder"), tuple(_runs(best[:SHOWN]))),
        footer=f"From the study {shared.name} in {shown(shared.url)}.",
    )
    return write_html(out / PAGE, page)


def _title(shared: SharedStudy) -> str:
    counts = {state: len(shared.trials(state)) for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)}
    told = f"{counts[TrialState.COMPLETE]} trials ended"
    told += f", {counts[TrialState.PRUNED]} pruned" if counts[TrialState.PRUNED] else ""
    told += f", {counts[TrialState.FAIL]} failed" if counts[TrialState.FAIL] else ""
    return f"{told}; {shared.search.sampler}, judged by {' and '.join(shared.search.objectives)}"


def _facts(shared: SharedStudy) -> tuple[tuple[str, str], ...]:
    config = shared.search.config
    told = {"sampler": shared.search.sampler, **{w.partition("=")[0]: w.partition("=")[2] for w in shared.search.words}}
    told |= {name: str(getattr(config, name)) for name in ("data", "model", "epochs", "seed") if name not in told}
    return tuple(told.items())


def _pairs(title: str, values: dict[str, Any]) -> Sheet:
    return Sheet(title, ("What", "Value"), tuple((name, str(value)) for name, value in values.items()))


def _runs(trials: Sequence[FrozenTrial]) -> list[tuple[str, str]]:
    return [(f"trial {trial.number}", str(trial.user_attrs.get(RUN, ""))) for trial in trials]


def _told(trial: FrozenTrial) -> str:
    return f"trial {trial.number}: {trial.user_attrs[FAILURE]}"


def _mark(method: str, palette: Palette) -> SimpleNamespace:
    return SimpleNamespace(key=palette.keys[method], colour=palette.colours[method], is_base=False)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
