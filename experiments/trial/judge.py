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


@dataclass(frozen=True)
class Evidence:
    """What the three questions about an arm rest on, in one task."""

    task: str
    sam: Difference
    """SAM over the base."""
    estimate: Difference
    """The arm over SAM, at SAM's settings where it has such runs."""
    not_worse: Answer
    price: float
    slow: bool
    """Whether the base's step takes so long that the price is asked."""
    value: Difference
    """The arm over the best base of its time, at its own settings."""
    keeps_half: Answer
    """Whether it keeps half of SAM's gain."""
    safety: Difference
    """The arm over the base, at its defaults where it has such runs."""
    safe: Answer


@dataclass(frozen=True)
class Answers:
    """The three questions' answers, and the tasks that they rest on."""

    rows: tuple[Evidence, ...]

    @property
    def price(self) -> float:
        """Return the mean price of the tasks in which it is asked."""
        slow = [row.price for row in self.rows if row.slow]
        return fmean(slow) if slow else math.nan

    @property
    def estimator(self) -> Answer:
        """Tell whether the arm is not worse than SAM, for its price."""
        said = [row.not_worse for row in self.rows]
        if said.count("no") >= 2 or self.price > PRICE:
            return "no"
        return "yes" if said and set(said) == {"yes"} and not math.isnan(self.price) else "cannot tell"

    @property
    def value(self) -> Answer:
        """Tell whether it is worth its price where SAM gains."""
        gains = [row for row in self.rows if row.sam.above(0) == "yes"]
        return joint([row.value.above(0) for row in gains] + [row.keeps_half for row in gains])

    @property
    def safety(self) -> Answer:
        """Tell whether it is never under the base by more than the margin."""
        return joint([row.safe for row in self.rows])


def answers(tasks: Sequence[Task], at_sams: str = SLICE, own: str = OWN, default: str = DEFAULT) -> Answers:
    """Answer the three questions about an arm, by its roles: at SAM's settings, at its own, and at its defaults."""
    rows = []
    for task in tasks:
        if all(task.runs.get(role) for role in (at_sams, own, default)):
            estimate, safety = task.over(at_sams, "sam"), task.over(default, "base")
            row = Evidence(
                task=task.name,
                sam=task.over("sam", "base"),
                estimate=estimate,
                not_worse=estimate.above(-task.margin),
                price=task.price(at_sams),
                slow=task.base_step() >= SLOW,
                value=task.over(own, task.rival(own)),
                keeps_half=task.differences(lambda a, b, m: (a - b) - (m - b) / 2, own, "base", "sam").above(0),
                safety=safety,
                safe=safety.above(-task.margin),
            )
            rows.append(row)
    return Answers(tuple(rows))


def joint(said: Sequence[Answer]) -> Answer:
    """Return yes if all say yes, no if one says no."""
    if not said:
        return "not run"
    if "no" in said:
        return "no"
    return "yes" if set(said) == {"yes"} else "cannot tell"
