"""Where does every entrant stand in every regime? Worked out from the records alone."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from esam.optim import METHODS
from esam.report.summaries import Spread, spread_of
from esam.train.record import RECORD_NAME, RunRecord, read_record
from esam.train.runs import BASE_TITLES

from .entrants import ENTRANTS, Entrant
from .regimes import REGIMES
from .rules import ranks

DRAWS = 2_000
"""Resamplings behind an interval or a share."""
COVERED = 0.95


@dataclass(frozen=True)
class Standing:
    """One entrant in one regime, over its seeds; accuracies in percent."""

    entrant: str
    title: str
    method: str
    control: bool
    runs: tuple[RunRecord, ...]
    last: Spread
    """Test accuracy after the last epoch."""
    best: Spread
    """Of each run's best evaluation: chosen on the test data, so it flatters."""
    train: Spread | None
    units: float
    """Counted by the method's row: 1 for the base, 2 for SAM."""
    passes: float
    """Forward passes and twice the backward passes that were run, over the base's."""
    time: Spread
    """Processor time of training, over the base's mean."""
    over_base: Spread | None
    """Points of accuracy over the base, seed by seed; None where they share no seed."""
    over_sam: Spread | None
    spoilt: int
    """Runs that failed or diverged."""

    @property
    def accuracies(self) -> dict[int, float]:
        """Accuracy of the last epoch by seed, in percent."""
        return _accuracies(self.runs)

    @property
    def setting(self) -> dict[str, Any]:
        """What the search chose: learning rate, weight decay, and the method's own settings."""
        config = self.runs[0].config
        return {"lr": config["lr"], "weight_decay": config["weight_decay"], **config["settings"]}


@dataclass(frozen=True)
class Overall:
    """One entrant over all regimes that it shares with the others."""

    entrant: str
    title: str
    control: bool
    units: float
    time: float
    """Geometric mean over the regimes of the processor time over the base's."""
    rank: Spread
    interval: tuple[float, float]
    """Where the mean rank lies in 95 % of resamplings of the regimes."""
    over_base: Spread | None
    """Points over the base: mean and spread of the regimes."""
    over_sam: Spread | None
    keeps_sam: int
    """Regimes in which it is at or above SAM, or under it by no more than seeds differ."""
    front: float
    """Share of the regimes' resamplings in which nothing cheaper is as accurate."""
    regimes: int


Map = dict[str, list[Standing]]
"""Standings by regime."""


def read_map(folder: str | Path) -> Map:
    """Return the standings in every regime of which the folder holds a run of the base."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: run esam frontier first, or give its folder with --out")
    known = [name for name in REGIMES if (folder / name).is_dir()]
    others = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in REGIMES)
    found = {name: _standings(folder / name) for name in [*known, *others]}
    return {name: standings for name, standings in found.items() if standings}


def regime_title(name: str) -> str:
    """Return what people read of a regime."""
    return REGIMES[name].title if name in REGIMES else name


def overall(found: Map) -> list[Overall]:
    """Return the entrants of the whole map, the best mean rank first, by the seeds and regimes that all have."""
    names, regimes = shared(found)
    if not names:
        return []
    rows = {regime: {one.entrant: one for one in found[regime]} for regime in regimes}
    by_regime = {regime: ranks(_common_means(rows[regime], names)) for regime in regimes}
    shares = {regime: front_shares([rows[regime][name] for name in names]) for regime in regimes}
    table = [
        _overall(
            [rows[regime][name] for regime in regimes],
            [by_regime[regime][name] for regime in regimes],
            fmean(shares[regime][name] for regime in regimes),
            len(regimes) - len(behind(found, name)),
        )
        for name in names
    ]
    return sorted(table, key=lambda one: one.rank.mean)


def shared(found: Map) -> tuple[list[str], list[str]]:
    """Return the entrants that ran in the most regimes, and the regimes in which all of these ran."""
    places = {one.entrant: 0 for standings in found.values() for one in standings}
    for standings in found.values():
        for one in standings:
            places[one.entrant] += 1
    names = [name for name, count in places.items() if count == max(places.values())]
    regimes = [regime for regime, rows in found.items() if set(names) <= {one.entrant for one in rows}]
    return names, regimes


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names on the Pareto front of {name: (cost, accuracy)}, the cheapest first.

    Nobody who costs no more is as accurate.
    """
    chosen: list[str] = []
    highest = -math.inf
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if points[name][1] > highest:
            chosen.append(name)
            highest = points[name][1]
    return chosen


def front_shares(standings: Sequence[Standing], draws: int = DRAWS) -> dict[str, float]:
    """Return how often each entrant is on the front when accuracies are drawn anew within their standard errors.

    Three seeds tell little of one entrant's spread, so all share the regime's: the root mean of their variances.
    """
    deviation = pooled_deviation(standings)
    stream = random.Random(0)
    counts = dict.fromkeys((one.entrant for one in standings), 0)
    for _ in range(draws):
        drawn = {
            one.entrant: (one.time.mean, stream.gauss(one.last.mean, deviation / math.sqrt(one.last.n)))
            for one in standings
        }
        for name in front(drawn):
            counts[name] += 1
    return {name: count / draws for name, count in counts.items()}


def pooled_deviation(standings: Sequence[Standing]) -> float:
    """Return the deviation between seeds that the entrants of a regime have in common; 0 with one seed each."""
    variances = [one.last.std**2 for one in standings if one.last.std is not None]
    return math.sqrt(fmean(variances)) if variances else 0.0


def standard_error(spread: Spread) -> float | None:
    """Return the standard error of a mean; None with a single value."""
    return None if spread.std is None else spread.std / math.sqrt(spread.n)


def _standings(folder: Path) -> list[Standing]:
    ended: dict[str, list[RunRecord]] = {}
    for path in sorted(folder.glob(f"*/runs/*/{RECORD_NAME}")):
        record = read_record(path)
        if record.end is not None:
            ended.setdefault(path.parts[-4], []).append(record)
    finished = {name: [run for run in runs if run.finished] for name, runs in ended.items()}
    if not finished.get("base"):
        return []
    names = [name for name in ENTRANTS if finished.get(name)]
    names += [name for name, runs in finished.items() if runs and name not in ENTRANTS]
    return [_standing(name, finished, failed=len(ended[name]) - len(finished[name])) for name in names]


def _standing(name: str, finished: Mapping[str, Sequence[RunRecord]], *, failed: int) -> Standing:
    runs, base = tuple(finished[name]), finished["base"]
    config = runs[0].config
    row = ENTRANTS.get(name, Entrant(name, runs[0].method))
    base_seconds = fmean(_sum(run, "cpu_seconds") for run in base)
    last = spread_of(_accuracies(runs).values())
    time = spread_of(_sum(run, "cpu_seconds") / base_seconds for run in runs)
    best = spread_of(100 * run.end["test_accuracy"]["best"] for run in runs if run.end is not None)
    assert last is not None and best is not None and time is not None, "there is a finished run"
    return Standing(
        entrant=name,
        title=row.named(BASE_TITLES[config["optimizer"]]),
        method=row.method,
        control=row.control,
        runs=runs,
        last=last,
        best=best,
        train=spread_of(100 * _sum(run, "train_accuracy") for run in runs),
        units=config["epochs"] / base[0].config["epochs"] * _units(row.method, config["settings"]),
        passes=_passes(runs) / _passes(base),
        time=time,
        over_base=_difference(runs, base),
        over_sam=_difference(runs, finished.get("sam", ())),
        spoilt=failed + sum(run.epochs[-1].get("train_loss") is None for run in runs),
    )


def _overall(rows: Sequence[Standing], placed: Sequence[float], on_front: float, keeps_sam: int) -> Overall:
    first, rank = rows[0], spread_of(placed)
    assert rank is not None
    return Overall(
        entrant=first.entrant,
        title=ENTRANTS[first.entrant].named("Base") if first.entrant in ENTRANTS else first.title,
        control=first.control,
        units=fmean(one.units for one in rows),
        time=math.exp(fmean(math.log(one.time.mean) for one in rows)),
        rank=rank,
        interval=resampled_interval(placed),
        over_base=spread_of(one.over_base.mean for one in rows if one.over_base is not None),
        over_sam=spread_of(one.over_sam.mean for one in rows if one.over_sam is not None),
        keeps_sam=keeps_sam,
        front=on_front,
        regimes=len(rows),
    )


def behind(found: Map, name: str, other: Literal["base", "sam"] = "sam") -> list[str]:
    """Return the shared regimes in which an entrant is under SAM, or the base, by more than seeds differ there."""
    names, regimes = shared(found)
    lost = []
    for regime in regimes:
        rows = {one.entrant: one for one in found[regime] if one.entrant in names}
        difference = rows[name].over_sam if other == "sam" else rows[name].over_base
        if difference is not None and difference.mean < -pooled_deviation(list(rows.values())):
            lost.append(regime)
    return lost


def resampled_interval(values: Sequence[float], draws: int = DRAWS) -> tuple[float, float]:
    """Return where the mean lies in 95 % of resamplings of the values."""
    stream = random.Random(0)
    means = sorted(fmean(stream.choices(values, k=len(values))) for _ in range(draws))
    outside = round((1 - COVERED) / 2 * draws)
    return means[outside], means[-1 - outside]


def _common_means(rows: Mapping[str, Standing], names: Sequence[str]) -> dict[str, float]:
    """Return the entrants' accuracies over the seeds that all of them have."""
    seeds = set.intersection(*(set(rows[name].accuracies) for name in names))
    return {name: fmean(rows[name].accuracies[seed] for seed in seeds) for name in names}


def _difference(runs: Sequence[RunRecord], others: Sequence[RunRecord]) -> Spread | None:
    """Return the difference in points, seed by seed: the same seed has the same weights and order."""
    ours, theirs = _accuracies(runs), _accuracies(others)
    return spread_of(ours[seed] - theirs[seed] for seed in ours if seed in theirs)


def _accuracies(runs: Sequence[RunRecord]) -> dict[int, float]:
    return {run.seed: 100 * float(run.end["test_accuracy"]["last"]) for run in runs if run.end is not None}


def _sum(run: RunRecord, name: str) -> float:
    assert run.end is not None
    return float(run.end[name])


def _passes(runs: Sequence[RunRecord]) -> float:
    return fmean(_sum(run, "forwards") + 2 * _sum(run, "backwards") for run in runs)


def _units(method: str, settings: Mapping[str, Any]) -> float:
    return METHODS[method].units(settings) / METHODS["base"].units()
