"""Which runs come next? Worked out from the records so far, by the rules of PROTOCOL.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from .arms import ARMS
from .run import HORIZONS, Run
from .tasks import TASKS

Records = dict[str, dict[str, Any]]  # by the key of their run
Score = Callable[[dict[str, Any]], float]

PILOT_SEEDS, TUNE_SEEDS, FINAL_SEEDS = (0,), (100, 101), (1000, 1001, 1002, 1003, 1004, 1005)
MORE_SEEDS, FULL_SEEDS = (1006, 1007), FINAL_SEEDS[:4]
SLICE, OWN, DEFAULT = "slicesam at SAM's radius", "slicesam", "slicesam, defaults"
EQUAL, LONGER = "base, SliceSAM's time", "base, twice as long"
DECIDING = ("base", "sam", SLICE, EQUAL, LONGER, OWN, DEFAULT)
"""The roles that the three questions are about."""
TUNED = ("base", "sam", "slicesam", "base-ema")
SMALL = ("noisy", "vit", "gpt", "finetune", "cifar10")  # one after the other: what is judged is complete
FULL_PRICE, FULL_MSAM = 1.18, 1.0  # SliceSAM's mean price, and Momentum-SAM's radius, on the smaller tasks
LAST = ("msam", "ascent", "rwp")  # tuned when all others have run, by the stage "last"; then in the final


class Missing(Exception):
    """Raised with the runs that a choice waits for."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(f"{len(runs)} runs are open")
        self.runs = runs


@dataclass(frozen=True)
class Ladder:
    """How one setting is searched: from these multiples of the start, on beyond the best where that is at an end."""

    setting: str
    multiples: tuple[float, ...]
    factor: float
    lowest: float
    highest: float


def better_is_higher(task: str) -> Score:
    """Return a task's score: accuracy, or minus the loss."""

    def score(record: dict[str, Any]) -> float:
        if record["diverged"]:
            return float("-inf")
        return record["accuracy"] if TASKS[task].judged_by == "accuracy" else -record["loss"]

    return score


def averaged_score(task: str, share: float) -> Score:
    """Return the same score of a running average of the weights."""
    kind, sign = ("accuracy", 1) if TASKS[task].judged_by == "accuracy" else ("loss", -1)
    return lambda record: float("-inf") if record["diverged"] else sign * record[f"ema_{share}_{kind}"]


def climb(
    records: Records, start: Run, ladder: Ladder, seeds: Sequence[int], score: Score, within: Sequence[Ladder] = ()
) -> Run:
    """Return the start with the best value of one setting, each value with its own best of the settings ``within``.

    Raises ``Missing`` while runs of it are open.
    """
    origin = getattr(start, ladder.setting)
    multiples = sorted(m for m in ladder.multiples if m <= ladder.highest)
    while True:
        tried: dict[float, Run] = {}
        missing: list[Run] = []
        for m in multiples:
            try:
                tried[m] = search(records, replace(start, **{ladder.setting: origin * m}), within, seeds, score)
            except Missing as more:
                missing += more.runs
        needed = [replace(run, seed=seed) for run in tried.values() for seed in seeds]
        if missing := [*missing, *(run for run in needed if run.key not in records)]:
            raise Missing(missing)
        mean = {m: fmean(score(records[replace(run, seed=s).key]) for s in seeds) for m, run in tried.items()}
        best = max(multiples, key=lambda m: mean[m])
        further = best * ladder.factor if best == multiples[-1] else best / ladder.factor
        if best not in (multiples[0], multiples[-1]) or not ladder.lowest <= further <= ladder.highest:
            return tried[best]
        multiples = sorted([*multiples, further])


def search(records: Records, start: Run, ladders: Sequence[Ladder], seeds: Sequence[int], score: Score) -> Run:
    """Search one setting after the other."""
    for ladder in ladders:
        start = climb(records, start, ladder, seeds, score)
    return start


def pilot_base(records: Records, task: str) -> Run:
    """Return the base's best of the pilot: learning rate, length, weight decay."""
    t = TASKS[task]
    start = Run("pilot", task, "base", 0, t.lr, t.weight_decay, t.epochs)
    ladders = (
        Ladder("lr", (1 / 3, 1, 3), 3, 1 / 9, 9),
        Ladder("epochs", (0.5, 1), 2, 0.25, t.longest),
        Ladder("weight_decay", (1 / 4, 1, 4), 4, 1 / 16, 16),
    )
    return search(records, start, ladders, PILOT_SEEDS, better_is_higher(task))


def pilot(records: Records, task: str) -> tuple[Run, Run]:
    """Return the base's best of the pilot, and SAM's there, by its radius."""
    base = pilot_base(records, task)
    sam = replace(base, arm="sam", rho=ARMS["sam"].rho)
    radii = Ladder("rho", (0.5, 1, 2), 2, 1 / 32, 8)
    return base, climb(records, sam, radii, PILOT_SEEDS, better_is_higher(task))


def tuned(records: Records, task: str, arm: str) -> Run:
    """Return an arm's best settings: as many trials for everyone, at full length, on validation data, two seeds."""
    score = better_is_higher(task)
    budget = TASKS[task].epochs * TASKS[task].longest
    if arm in ("base", "base-ema"):
        base = pilot_base(records, task)
        start = replace(base, stage="tune", arm="base")
        length = Ladder("epochs", (0.5, 1), 2, 0.125, budget / base.epochs)
        rates = (Ladder("lr", (0.5, 1, 2), 2, 0.125, 8),)  # at each length its own
        if arm == "base":
            return climb(records, start, length, TUNE_SEEDS, score, rates)
        averaged = [averaged_score(task, share) for share in HORIZONS]
        found = [climb(records, start, length, TUNE_SEEDS, score, rates) for score in averaged]
        return max(found, key=lambda run: best_average(records, task, run)[1])
    base, (_, sam) = tuned(records, task, "base"), pilot(records, task)
    start = replace(base, arm=arm, rho=sam.rho if arm in ("sam", "slicesam", "ascent") else ARMS[arm].rho)
    length = Ladder("epochs", (0.5, 1, 2), 2, 0.125, budget / base.epochs)
    return search(records, start, (Ladder("rho", (0.5, 1, 2), 2, 1 / 32, 8), length), TUNE_SEEDS, score)


def best_average(records: Records, task: str, run: Run) -> tuple[float, float]:
    """Return the horizon of the best average of these weights, and its score on the validation data."""
    seeds = [replace(run, seed=seed) for seed in TUNE_SEEDS]
    means = {h: fmean(averaged_score(task, h)(records[r.key]) for r in seeds) for h in HORIZONS}
    horizon = max(means, key=lambda h: means[h])
    return horizon, means[horizon]


def price(records: Records, run: Run, base: Run) -> float:
    """Return the processor time of a step over the base's, in the tuning's runs."""
    ours, theirs = (
        fmean(records[replace(r, seed=s).key]["seconds"] / records[replace(r, seed=s).key]["steps"] for s in TUNE_SEEDS)
        for r in (run, base)
    )
    return ours / theirs


def roles(records: Records, task: str) -> dict[str, Run]:
    """Return the arms of the final, each by its settings; what decides comes first."""
    if task == "full":
        return full_roles(records)
    base, sam, own = (replace(tuned(records, task, arm), stage="final") for arm in ("base", "sam", "slicesam"))
    tune = {run.arm: replace(run, stage="tune") for run in (base, sam, own)}
    dearer = max(1.0, price(records, tune["slicesam"], tune["base"]))
    found = {
        "base": base,
        "sam": sam,
        SLICE: replace(sam, arm="slicesam"),
        EQUAL: replace(base, epochs=base.epochs * round(dearer, 3)),
        LONGER: replace(base, epochs=base.epochs * 2),
        OWN: own,
        DEFAULT: replace(base, arm="slicesam", rho=ARMS["slicesam"].rho),
        "base-ema": replace(tuned(records, task, "base-ema"), stage="final"),
        "esam": replace(sam, arm="esam"),
    }
    for arm in LAST:
        with suppress(Missing):
            found[arm] = replace(tuned(records, task, arm), stage="final")
    if "ascent" in found:
        found |= {arm: replace(sam, arm=arm) for arm in ("sam-groups", "esam-swp")}
    return found


def full_roles(records: Records) -> dict[str, Run]:
    """Return the arms at full size, where the base's learning rate alone is searched: the rest is fixed."""
    t = TASKS["full"]
    start = Run("pilot", "full", "base", PILOT_SEEDS[0], t.lr, t.weight_decay, t.epochs)
    found = climb(records, start, Ladder("lr", (0.5, 1, 2), 2, 1 / 4, 4), PILOT_SEEDS, better_is_higher("full"))
    base = replace(found, stage="final", epochs=t.epochs)
    sam = replace(base, arm="sam", rho=ARMS["sam"].rho)
    ours = replace(sam, arm="slicesam")  # SAM's radius, its own and the default are one here
    return {
        "base": base,
        "sam": sam,
        SLICE: ours,
        EQUAL: replace(base, epochs=t.epochs * FULL_PRICE),
        OWN: ours,
        DEFAULT: ours,
        "msam": replace(base, arm="msam", rho=FULL_MSAM),
    }


def final(records: Records, task: str, seeds: Sequence[int] = FINAL_SEEDS) -> dict[str, list[Run]]:
    """Return the runs of the final of a task, by role, one a seed."""
    return {role: [replace(run, seed=seed) for seed in seeds] for role, run in roles(records, task).items()}


def seeds_of_the_final(records: Records, task: str) -> tuple[int, ...]:
    """Return six seeds; eight where the first question cannot be told after six; at full size four."""
    from .judge import Task  # which reads records by these stages

    if task == "full":
        return FULL_SEEDS

    if any(run.key not in records for role in ("sam", SLICE) for run in final(records, task)[role]):
        return FINAL_SEEDS
    judged = Task(records, task, FINAL_SEEDS)
    undecided = judged.over(SLICE, "sam").above(-judged.margin) == "cannot tell"
    return (*FINAL_SEEDS, *MORE_SEEDS) if undecided else FINAL_SEEDS


def open_runs(records: Records, stage: str, tasks: Sequence[str]) -> list[Run]:
    """Return the runs that can be started now, task by task; none of a task that waits for an earlier stage."""
    found: list[Run] = []
    for task in tasks:
        with suppress(Missing):
            found += _open(records, stage, task)
    return found


def _open(records: Records, stage: str, task: str) -> Iterator[Run]:
    if stage == "pilot":
        waits = [lambda: full_roles(records) if task == "full" else pilot(records, task)]
    elif stage != "final" and task == "full":
        return
    elif stage in ("tune", "last"):
        waits = [lambda arm=arm: tuned(records, task, arm) for arm in (TUNED if stage == "tune" else LAST)]
    else:
        waits, roles = [], final(records, task, seeds_of_the_final(records, task))
        for part in (DECIDING, roles.keys() - {*DECIDING}):
            for turn in zip(*(roles[role] for role in roles if role in part), strict=True):  # seed by seed
                yield from (run for run in turn if run.key not in records)
    seen: set[str] = set()
    for wait in waits:
        try:
            wait()
        except Missing as missing:
            yield from (run for run in missing.runs if run.key not in seen)
            seen |= {run.key for run in missing.runs}
