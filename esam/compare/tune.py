"""Which settings does each method get, by the same small budget and without a look at the test data?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esam.files import write_atomically
from esam.train.config import Config, find_method
from esam.train.data.draws import generator_for
from esam.train.names import did_you_mean
from esam.train.record import encode

from .plan import Comparison, PlannedRun, configured, folder_of

SEED = 100
"""Of the search's runs: none that a comparison is likely to have."""
SEARCHED = ("rho", "lr", "weight_decay")
"""What can be looked for; the first is a method's own, the others the base optimizer's."""
FACTORS = (1, 1 / 2, 2, 1 / 4, 4, 1 / 8, 8, 1 / 16)
"""Tried in this order, as multiples of the value that a method would have otherwise."""

Launch = Callable[[Sequence[PlannedRun]], object]
Trials = Mapping[str, Sequence[tuple[PlannedRun, Mapping[str, float]]]]
"""By method: the runs of its trials, each with the values that it tries."""


@dataclass(frozen=True)
class Tried:
    """The values that one trial tried for a method, and what they came to on held-out training data."""

    method: str
    values: Mapping[str, float]
    accuracy: float | None = None
    loss: float | None = None
    """Both None: the run diverged, or failed."""

    @property
    def score(self) -> float | None:
        """What is compared: accuracy, or where the targets are no classes the loss, turned round."""
        return self.accuracy if self.accuracy is not None or self.loss is None else -self.loss

    def as_json(self) -> dict[str, Any]:
        """Return the trial as it stands in a record."""
        return {**self.values, "accuracy": self.accuracy, "loss": self.loss}


def trials(
    comparison: Comparison, folder: str | Path, tries: int, over: Sequence[str] = ("rho",), *, seed: int = SEED
) -> Trials:
    """Return the runs that a search takes: as many for each method as for any other that has something to search.

    Each is as long as those of the comparison, with a fifth of the training data in the place of the test data. The
    first has the values that the method would have otherwise. Each setting takes each of so many multiples once, in
    an order that follows ``seed`` and the setting's name alone: every method tries the same learning rates.
    """
    if not 1 <= tries <= len(FACTORS):
        raise ValueError(f"tune must be in 1..{len(FACTORS)} trials for each method, got {tries}")
    if not over or len(set(over)) < len(over):
        raise ValueError(f"tune_over must name one or more of {', '.join(SEARCHED)}, each once, got {list(over)}")
    for name in over:
        if name not in SEARCHED:
            raise ValueError(
                f"tune_over can hold {', '.join(SEARCHED)}, got {name!r}.{did_you_mean(name, list(SEARCHED))}"
            )
    found = {}
    for method in comparison.methods:
        config = dataclasses.replace(configured(comparison, method, seed), validation=True)
        start = _start(config, over)
        points = [{name: start[name] * by[name] for name in start} for by in _factors(over, tries, seed)]
        if start:
            found[method] = [(_planned(_with(config, point), folder), point) for point in points]
    return found


def tune(
    comparison: Comparison,
    folder: str | Path,
    tries: int,
    launch: Launch,
    over: Sequence[str] = ("rho",),
    *,
    seed: int = SEED,
) -> tuple[Comparison, list[Tried]]:
    """Return the comparison with the best of so many trials for each method, and all that was tried.

    ``launch`` does the runs; those that are done are not repeated. Of equally good ones the first setting's smaller
    value is taken, and then the earlier trial.
    """
    runs = trials(comparison, folder, tries, over, seed=seed)
    launch([run for several in runs.values() for run, _ in several])
    found = {method: [_result(method, *one) for one in several] for method, several in runs.items()}
    chosen: dict[str, dict[str, Any]] = {method: dict(own) for method, own in comparison.settings.items()}
    told = {}
    for method, tried in found.items():
        best = _best(method, tried)
        chosen[method] = {**chosen.get(method, {}), **best.values}
        told[method] = {"trials": [one.as_json() for one in tried], "chosen": dict(best.values)}
    searched = dataclasses.replace(comparison, settings=chosen, tuned=told)
    return searched, [one for tried in found.values() for one in tried]


def tell_search(runs: Sequence[PlannedRun]) -> None:
    """Write what a search tried into records that came to their end before it; the others will say it themselves."""
    for run in runs:
        record = run.record()
        if record is not None and record.end is not None and run.config.tuned != record.config.get("tuned"):
            first = {**record.run, "config": {**record.config, "tuned": dict(run.config.tuned)}}
            lines = (first, *record.epochs, record.end)
            write_atomically(record.path, b"".join(encode(line) for line in lines))


def _factors(over: Sequence[str], tries: int, seed: int) -> list[dict[str, float]]:
    """Return a factor on each setting, trial by trial; the first setting keeps the order, the others are shuffled."""
    orders = {}
    for number, name in enumerate(over):
        drawn = torch.randperm(tries - 1, generator=generator_for("tune", seed, name)).tolist()
        orders[name] = [0, *(1 + place for place in (drawn if number else range(tries - 1)))]
    return [{name: FACTORS[order[trial]] for name, order in orders.items()} for trial in range(tries)]


def _start(config: Config, over: Sequence[str]) -> dict[str, float]:
    """Return the values that a run would have without a search; a radius only where the method has one."""
    rho = find_method(config.method).effective(config.settings).get("rho")
    start = {"lr": config.lr, "weight_decay": config.weight_decay}
    if isinstance(rho, (int, float)) and rho > 0:
        start["rho"] = float(rho)
    for name in over:
        if start.get(name) == 0:
            raise ValueError(f"{name} is 0, and so is each multiple of it; give it a value, or do not search for it")
    return {name: start[name] for name in over if name in start}


def _with(config: Config, point: Mapping[str, float]) -> Config:
    """Return the configuration with these values."""
    own = {name: value for name, value in point.items() if name != "rho"}
    radius = {"rho": point["rho"]} if "rho" in point else {}
    return dataclasses.replace(config, settings={**config.settings, **radius}, **own)  # type: ignore[arg-type]


def _planned(config: Config, folder: str | Path) -> PlannedRun:
    return PlannedRun(config, folder_of(config, folder))


def _result(method: str, run: PlannedRun, values: Mapping[str, float]) -> Tried:
    record = run.record()
    end = record.end if record is not None and record.finished else None
    if end is None:
        return Tried(method, values)
    return Tried(method, values, end["test_accuracy"].get("last"), end.get("test_loss"))


def _best(method: str, tried: Sequence[Tried]) -> Tried:
    scores = [(one.score, one) for one in tried if one.score is not None]
    if not scores:
        raise RuntimeError(f"no trial let {method} come to its end; lower lr")
    # max takes the first of equals
    return max(scores, key=lambda pair: (pair[0], -next(iter(pair[1].values.values()))))[1]
