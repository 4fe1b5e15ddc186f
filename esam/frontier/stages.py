"""What is run in which order? A screening, the map, and more seeds for the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from esam.compare.launch import Place
from esam.compare.plan import PlannedRun, folder_of
from esam.train.config import Config
from esam.train.names import did_you_mean

from .elsewhere import Elsewhere
from .engine import Engine, ended
from .entrants import ENTRANTS, PROTECTED, Entrant
from .regimes import REGIMES, Regime
from .rules import FEWEST_METHODS, finalists, survivors
from .search import Point, best_point, final, points, trial

STAGES = ("screen", "main", "finals")
SCREEN_REGIMES = ("fits", "wrong20", "text")
SCREEN_SEEDS, MAIN_SEEDS, FINAL_SEEDS = (0,), (0, 1, 2), (3, 4)


@dataclass(frozen=True)
class Arena:
    """Who runs where, and the folder that keeps the records."""

    folder: Path
    regimes: Mapping[str, Regime]
    entrants: Mapping[str, Entrant]
    screened: Sequence[str] = SCREEN_REGIMES
    fewest: int = FEWEST_METHODS

    def trials(self, entrants: Iterable[str], regimes: Iterable[str]) -> list[PlannedRun]:
        """Return the trials of the search."""
        return [
            self._planned(regime, name, "search", trial(self.regimes[regime], self.entrants[name], point))
            for regime in regimes
            for name in entrants
            for point in points(self.entrants[name])
        ]

    def finals(self, entrants: Iterable[str], regimes: Iterable[str], seeds: Iterable[int]) -> list[PlannedRun]:
        """Return the runs on the test set, at the points that the search chose; seed by seed, whole maps first."""
        return [
            self._planned(regime, name, "runs", final(self.regimes[regime], self.entrants[name], point, seed))
            for seed in seeds
            for regime in regimes
            for name in entrants
            if (point := self.chosen(regime, name)) is not None
        ]

    def chosen(self, regime: str, name: str) -> Point | None:
        """Return the point that the trials' records choose; None while one is missing."""
        tried = points(self.entrants[name])
        runs = self.trials([name], [regime])
        if not all(ended(run) for run in runs):
            return None
        return best_point(tried, [accuracy(run) for run in runs])

    def found(
        self, entrants: Iterable[str], regimes: Iterable[str], seeds: Sequence[int]
    ) -> dict[str, dict[str, float]]:
        """Return the mean accuracy of the last epoch in percent, by entrant and regime."""
        return {
            name: {
                regime: 100 * fmean(accuracy(run) for run in self.finals([name], [regime], seeds)) for regime in regimes
            }
            for name in entrants
        }

    def controls(self) -> list[str]:
        """Return the names of the controls."""
        return [name for name, entrant in self.entrants.items() if entrant.control]

    def survivors(self) -> list[str]:
        """Return who the screening lets go on; everyone where it has not been run whole."""
        screened = [regime for regime in self.screened if regime in self.regimes]
        everyone = list(self.entrants)
        runs = self.finals(everyone, screened, SCREEN_SEEDS)
        if not screened or len(runs) < len(everyone) * len(screened) or not all(ended(run) for run in runs):
            return everyone
        units = {name: entrant.units() for name, entrant in self.entrants.items()}
        found = self.found(everyone, screened, SCREEN_SEEDS)
        return survivors(found, units, controls=self.controls(), protected=PROTECTED, fewest=self.fewest)

    def finalists(self) -> list[str]:
        """Return who is run with more seeds."""
        found = self.found(self.survivors(), list(self.regimes), MAIN_SEEDS)
        return finalists(found, controls=self.controls())

    def _planned(self, regime: str, name: str, kind: str, config: Config) -> PlannedRun:
        return PlannedRun(config, folder_of(config, self.folder / regime / name / kind))


def accuracy(run: PlannedRun) -> float:
    """Return the test accuracy of a run's last epoch; 0 for one that failed before it was evaluated."""
    record = run.record()
    last = None if record is None or record.end is None else record.end["test_accuracy"].get("last")
    return float(last or 0.0)


def make(
    arena: Arena, stages: Sequence[str], *, jobs: int, tell: Callable[[str], None], place: Place | None = None
) -> None:
    """Run the stages, or what is left of them, here or at another place; interrupted, the same call resumes."""
    regimes = list(arena.regimes)
    with Engine(jobs, tell) if place is None else nullcontext(Elsewhere(place, tell)) as engine:
        if "screen" in stages:
            screened = [regime for regime in arena.screened if regime in regimes]
            engine.make("screen, search", arena.trials(arena.entrants, screened))
            engine.make("screen", arena.finals(arena.entrants, screened, SCREEN_SEEDS))
            staying = arena.survivors()
            tell(f"dropped: {', '.join(name for name in arena.entrants if name not in staying) or 'nobody'}")
        if "main" in stages:
            staying = arena.survivors()
            engine.make("search", arena.trials(staying, regimes))
            engine.make("main", arena.finals(staying, regimes, MAIN_SEEDS))
        if "finals" in stages:
            best = arena.finalists()
            tell(f"finalists: {', '.join(best)}")
            engine.make("finals", arena.finals(best, regimes, FINAL_SEEDS))


def arena_of(folder: str | Path, regimes: Sequence[str] = (), entrants: Sequence[str] = ()) -> Arena:
    """Return the arena in a folder; of some regimes and entrants, where they are named."""
    return Arena(Path(folder), _named("regime", regimes, REGIMES), _named("entrant", entrants, ENTRANTS))


def _named(what: str, names: Sequence[str], rows: Mapping[str, Any]) -> dict[str, Any]:
    for name in names:
        if name not in rows:
            raise ValueError(f"there is no {what} {name!r}.{did_you_mean(name, rows)} There are: {', '.join(rows)}")
    return {name: rows[name] for name in (names or rows)}
