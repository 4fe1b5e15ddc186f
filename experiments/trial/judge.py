"""What did the trial find? The answers of PROTOCOL.md, from the records alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from scipy.stats import t as student

from .stages import (
    DECIDING,
    DEFAULT,
    EQUAL,
    FINAL_SEEDS,
    FULL_SEEDS,
    LONGER,
    MORE_SEEDS,
    OWN,
    SLICE,
    Missing,
    Records,
    best_average,
    final,
    tuned,
)
from .tasks import TASKS

Answer = Literal["yes", "no", "cannot tell", "not run"]
MARGIN = {"accuracy": 0.5, "loss": 0.02}
PRICE, SLOW = 1.15, 0.1  # the highest mean price; the step, in seconds, from which on it is asked
TWICE = ("sam", "sam-groups", "esam", "esam-swp")
"""Arms whose time the longer base has; the others have the base of SliceSAM's time."""


@dataclass(frozen=True)
class Difference:
    """Differences paired by seed: their mean, and one-sided 95 % bounds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean difference."""
        return fmean(self.values)

    @property
    def reach(self) -> float:
        """Return how far a one-sided 95 % bound is from the mean; infinite for fewer than two seeds."""
        n = len(self.values)
        return float(student.ppf(0.95, n - 1)) * stdev(self.values) / math.sqrt(n) if n > 1 else math.inf

    def above(self, bound: float) -> Answer:
        """Tell whether the difference is above a bound."""
        if not self.values:
            return "not run"
        if self.mean - self.reach > bound:
            return "yes"
        return "no" if self.mean + self.reach < bound else "cannot tell"

    def text(self, digits: int) -> str:
        """Write the mean and the two bounds."""
        if not self.values:
            return "–"
        mean, low, high = self.mean, self.mean - self.reach, self.mean + self.reach
        if math.isinf(self.reach):
            return f"{mean:+.{digits}f} (one seed)"
        return f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


class Task:
    """The final of one task: values of every role, by seed."""

    def __init__(self, records: Records, name: str, seeds: Sequence[int] = (*FINAL_SEEDS, *MORE_SEEDS)) -> None:
        self.name, self.task = name, TASKS[name]
        self.runs: dict[str, dict[int, dict[str, Any]]] = {}
        for role, runs in final(records, name, seeds).items():
            self.runs[role] = {run.seed: records[run.key] for run in runs if run.key in records}
        averaged = "base-ema" in self.runs
        self.horizon = best_average(records, name, tuned(records, name, "base-ema"))[0] if averaged else None

    @property
    def margin(self) -> float:
        """Return the margin, in the units of ``score``."""
        return MARGIN[self.task.judged_by]

    def value(self, role: str, record: dict[str, Any], kind: str) -> float:
        """Return a value of a run; the averaged base is judged by its average, a diverged run as chance."""
        if record["diverged"]:
            classes = 65 if self.name == "gpt" else 100 if self.name == "finetune" else 10
            return 100 / classes if kind.startswith("accuracy") else math.log(classes)
        return record[f"ema_{self.horizon}_{kind}" if role == "base-ema" else kind]

    def score(self, role: str, record: dict[str, Any]) -> float:
        """Return what the task is judged by; higher is better."""
        return self.value(role, record, "accuracy" if self.task.judged_by == "accuracy" else "loss") * self.sign

    @property
    def sign(self) -> int:
        """Return -1 where lower is better."""
        return 1 if self.task.judged_by == "accuracy" else -1

    def differences(self, combine: Callable[..., float], *roles: str) -> Difference:
        """Combine the scores of roles, seed by seed, where all of them have run."""
        seeds = set.intersection(*(set(self.runs.get(role, ())) for role in roles))
        scores = [[self.score(role, self.runs[role][seed]) for role in roles] for seed in sorted(seeds)]
        return Difference(tuple(combine(*row) for row in scores))

    def over(self, role: str, other: str) -> Difference:
        """Return how far one role is above another."""
        return self.differences(lambda a, b: a - b, role, other)

    def rival(self, role: str) -> str:
        """Return the best base within an arm's time: at its own length, or longer, whichever has the higher mean."""
        bases = [base for base in ("base", LONGER if role in TWICE else EQUAL) if self.runs.get(base)]
        return max(bases, key=lambda base: fmean(self.score(base, r) for r in self.runs[base].values()))

    def time(self, role: str, seconds: Callable[[dict[str, Any]], float]) -> float:
        """Return the processor time over the base's, the mean over seeds that both have from the same processor."""
        both = [(run, self.runs["base"][seed]) for seed, run in self.runs[role].items() if seed in self.runs["base"]]
        ratios = [seconds(run) / seconds(base) for run, base in both if run.get("hardware") == base.get("hardware")]
        return fmean(ratios) if ratios else math.nan

    def price(self, role: str) -> float:
        """Return the time of a step over the base's."""
        return self.time(role, step)

    def total(self, role: str) -> float:
        """Return the time of a whole run over the base's at its own length."""
        return self.time(role, lambda record: record["seconds"])

    def base_step(self) -> float:
        """Return the base's seconds a step."""
        return fmean(step(record) for record in self.runs["base"].values())

    def informative(self) -> Answer:
        """Tell whether SAM gains over the tuned base."""
        return self.over("sam", "base").above(0.0)

    def mean(self, role: str, kind: str) -> tuple[float, float, int]:
        """Return mean, standard deviation and n of a value."""
        values = [self.value(role, record, kind) for record in self.runs[role].values()]
        return (
            (fmean(values), stdev(values) if len(values) > 1 else math.nan, len(values))
            if values
            else (math.nan,) * 2 + (0,)
        )


def step(record: dict[str, Any]) -> float:
    """Return the mean seconds of a step."""
    return record["seconds"] / record["steps"]


def finished(records: Records) -> list[Task]:
    """Return the tasks whose deciding roles have run with every seed of the final."""
    found = []
    for name in TASKS:
        with suppress(Missing):
            task, seeds = Task(records, name), FULL_SEEDS if name == "full" else FINAL_SEEDS
            if all(len(task.runs[role]) >= len(seeds) for role in DECIDING if role in task.runs):
                found.append(task)
    return found


def answers(tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the three questions' answers, task by task, and what they come to."""
    rows = {
        task.name: {
            "base step, ms": 1000 * task.base_step(),
            "SAM over base": task.over("sam", "base"),
            "informative": task.informative(),
            "SliceSAM over SAM": task.over(SLICE, "sam"),
            "not worse than SAM": task.over(SLICE, "sam").above(-task.margin),
            "price": task.price(SLICE),
            "over the base of equal time": task.over(OWN, task.rival(OWN)),
            "keeps half of SAM's gain": task.differences(
                lambda s, b, m: (s - b) - (m - b) / 2, OWN, "base", "sam"
            ).above(0),
            "defaults over base": task.over(DEFAULT, "base"),
            "safe at its defaults": task.over(DEFAULT, "base").above(-task.margin),
        }
        for task in tasks
    }
    slow = [task.price(SLICE) for task in tasks if task.base_step() >= SLOW]
    said = [row["not worse than SAM"] for row in rows.values()]
    dear = bool(slow) and fmean(slow) > PRICE
    if said.count("no") >= 2 or dear:
        first = "no"
    else:
        first = "yes" if said and set(said) == {"yes"} and slow else "cannot tell"
    worth = [row for row in rows.values() if row["informative"] == "yes"]
    second = joint(
        [row["over the base of equal time"].above(0) for row in worth]
        + [row["keeps half of SAM's gain"] for row in worth]
    )
    third = joint([row["safe at its defaults"] for row in rows.values()])
    mean_price = fmean(slow) if slow else math.nan
    return {"rows": rows, "estimator": first, "value": second, "safety": third, "price": mean_price}


def joint(said: Sequence[Answer]) -> Answer:
    """Return yes if all say yes, no if one says no."""
    if not said:
        return "not run"
    if "no" in said:
        return "no"
    return "yes" if set(said) == {"yes"} else "cannot tell"
