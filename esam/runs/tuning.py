"""Which settings does each method get, by the same number of trials and without a look at the test data?

Every method gets the same number of full-length trials on training data of which a fifth is held out. Settings take
multiples of the value that a method starts with: its radius, the learning rate, the weight decay, the number of epochs.
A best value at the edge of what was tried proves nothing, so rounds of one further trial follow: outwards for a method
whose best is at an edge, between the best and its better neighbour for the others. So all methods keep the same count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from esam.report.results import tried_sheet
from esam.report.sheets import as_text
from esam.train.config import Config, find_method
from esam.train.distributed import Ranks
from esam.train.samples import generator_for

from .plan import SEED, Comparison, PlannedRun, configured, folder_of, plan, trial_config

SEARCHED = ("rho", "lr", "weight_decay", "epochs")
"""The settings that can be searched: the method's radius, the base optimizer's settings, and the length."""
FACTORS = (1, 1 / 2, 2, 1 / 4, 4, 1 / 8, 8, 1 / 16)
"""Tried in this order, as multiples of the value that a method starts with."""
ROUNDS = 3
"""At most so many trials more, for a best value that is at the edge of what was tried."""

Launch = Callable[[Sequence[PlannedRun]], object]
Point = dict[str, float]


@dataclass(frozen=True)
class Trial:
    """The values of one trial, and its result on held-out training data; without one, the run diverged or failed."""

    values: Mapping[str, float]
    accuracy: float | None = None
    loss: float | None = None

    @property
    def score(self) -> float:
        """Larger is better: the accuracy, or minus the loss where the targets are not classes."""
        if self.accuracy is not None:
            return self.accuracy
        return -math.inf if self.loss is None else -self.loss


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the best trial; of equal ones that with the smaller first value (the cheaper, the weaker), then the first.

    >>> best_of([Trial({"rho": 0.1}, 0.9), Trial({"rho": 0.05}, 0.9), Trial({"rho": 0.2})]).values
    {'rho': 0.05}
    """
    return max(trials, key=lambda trial: (trial.score, -next(iter(trial.values.values()))))  # the first of equals


def tuned_runs(
    comparison: Comparison, out: str | Path, launch: Launch, tell: Callable[[str], None] | None
) -> list[PlannedRun]:
    """Return a comparison's runs, after its search if it asks for one; what was tried is told as a table."""
    if comparison.tune:
        comparison = tune(comparison, out, launch)
        if tell is not None and Ranks.current().first:
            tell(as_text(tried_sheet(comparison.tuned)))
    return plan(comparison, out)


def tune(comparison: Comparison, out: str | Path, launch: Launch) -> Comparison:
    """Return the comparison with the best of the same number of trials for each method.

    ``launch`` does the runs; those that are done are not repeated. What was tried is in the comparison's ``tuned``, and
    so in the records of its runs.
    """
    points = first_points(comparison)
    for number in range(1 + ROUNDS):
        runs = trial_runs(comparison, points, out)
        launch([run for several in runs.values() for run in several])
        trials = {method: [*map(_trial, points[method], runs[method])] for method in points}
        for method, several in trials.items():
            if best_of(several).score == -math.inf:
                raise RuntimeError(f"no trial let {method} come to its end; lower lr")
        if number == ROUNDS or not any(map(_open_edge, trials.values())):
            break
        points = {method: [*points[method], further_point(several)] for method, several in trials.items()}
    settings, tuned = dict(comparison.settings), {}
    for method, several in trials.items():
        chosen = dict(best_of(several).values)
        settings[method] = {**settings.get(method, {}), **chosen}
        tried = [{**trial.values, "accuracy": trial.accuracy, "loss": trial.loss} for trial in several]
        tuned[method] = {"trials": tried, "chosen": chosen}
    return replace(comparison, settings=settings, tuned=tuned)


def _trial(point: Point, run: PlannedRun) -> Trial:
    record = run.record()
    end = record.end if record is not None and record.finished else None
    return Trial(point, end["test_accuracy"].get("last"), end.get("test_loss")) if end else Trial(point)


def first_points(comparison: Comparison) -> dict[str, list[Point]]:
    """Return the values that each method tries first, for every method that has something to search.

    The first point is the method as it is. Each setting takes each of so many multiples once, in an order that follows
    the setting's name alone: every method tries the same learning rates.
    """
    tries, over = comparison.tune, comparison.tune_over
    if not 1 <= tries <= len(FACTORS):
        raise ValueError(f"tune must be in 1..{len(FACTORS)} trials for each method, got {tries}")
    if not over or len(set(over)) < len(over) or not set(over) <= set(SEARCHED):
        raise ValueError(f"tune_over must name one or more of {', '.join(SEARCHED)}, each once, got {list(over)}")
    factors = {over[0]: FACTORS[:tries]}
    for name in over[1:]:
        order = torch.randperm(tries - 1, generator=generator_for("tune", SEED, name)).tolist()
        factors[name] = (FACTORS[0], *(FACTORS[1 + place] for place in order))
    points = {}
    for method in comparison.methods:
        if start := _start(configured(comparison, method, SEED), over):
            points[method] = [_rounded({k: v * factors[k][n] for k, v in start.items()}) for n in range(tries)]
    return points


def further_point(trials: Sequence[Trial]) -> Point:
    """Return what to try next: the best point moved outwards where it is at an edge, else refined.

    >>> tried = [Trial({"rho": rho}, accuracy) for rho, accuracy in ((0.05, 0.8), (0.1, 0.9), (0.025, 0.7))]
    >>> further_point(tried)
    {'rho': 0.2}
    """
    best = best_of(trials)
    if (edge := _open_edge(trials)) is not None:
        name, factor = edge
        return _rounded({**best.values, name: best.values[name] * factor})
    name = next(iter(best.values))
    others = [trial for trial in trials if trial.values[name] != best.values[name] and trial.score > -math.inf]
    near = best_of(others).values[name] if others else 2 * best.values[name]
    return _rounded({**best.values, name: math.sqrt(best.values[name] * near)})


def first_runs(comparison: Comparison, out: str | Path) -> list[PlannedRun]:
    """Return the trials that a comparison begins with; none where it has no search."""
    points = first_points(comparison) if comparison.tune else {}
    return [run for several in trial_runs(comparison, points, out).values() for run in several]


def trial_runs(
    comparison: Comparison, points: Mapping[str, Sequence[Point]], out: str | Path
) -> dict[str, list[PlannedRun]]:
    """Return the run of each point: a comparison's run with other values, evaluated on held-out training data.

    The folders are beside ``out``, as the report there is about the other runs.
    """
    folder = Path(out).with_name(f"{Path(out).name}-tuning")
    runs: dict[str, list[PlannedRun]] = {method: [] for method in points}
    for method, several in points.items():
        for number, point in enumerate(several, start=1):
            config = trial_config(comparison, method, point)
            values = ", ".join(f"{name} {value:g}" for name, value in point.items())
            label = f"{method}, trial {number} ({values})"
            runs[method].append(PlannedRun(config, folder_of(config, folder), label=label))
    return runs


def _open_edge(trials: Sequence[Trial]) -> tuple[str, float] | None:
    """Return the setting whose best value is the smallest or largest tried, and the factor that leads outwards."""
    best = best_of(trials)
    for name, value in best.values.items():
        tried = [trial.values[name] for trial in trials]
        if len(set(tried)) > 1 and value == max(tried):
            return name, 2
        if len(set(tried)) > 1 and value == min(tried) and not (name == "epochs" and value == 1):
            return name, 1 / 2
    return None


def _start(config: Config, over: Sequence[str]) -> Point:
    """Return the values that a run would have without a search; a radius only where the method has one."""
    rho = find_method(config.method).effective(config.settings).get("rho")
    start = {"lr": config.lr, "weight_decay": config.weight_decay, "epochs": float(config.epochs)}
    if isinstance(rho, (int, float)) and rho > 0:
        start["rho"] = float(rho)
    if "epochs" in over and config.budget is not None:
        raise ValueError("epochs cannot be searched where a budget in seconds is the length; leave one of them out")
    for name in over:
        if start.get(name) == 0:
            raise ValueError(f"{name} is 0, and so is each multiple of it; give it a value, or do not search for it")
    return {name: start[name] for name in over if name in start}


def _rounded(point: Mapping[str, float]) -> Point:
    """Return the point with a whole number of epochs, and no more digits than a reader wants."""
    return {name: max(1, round(v)) if name == "epochs" else float(f"{v:.6g}") for name, v in point.items()}
