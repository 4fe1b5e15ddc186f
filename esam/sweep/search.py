"""What is searched, how, and by what is it judged? The one description that all workers of a search share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from esam.compare.plan import Comparison
from esam.train.config import Config
from esam.train.names import did_you_mean
from esam.train.task import is_factory

from .objectives import OBJECTIVES, Objective
from .space import Space, read_space

SAMPLERS = ("tpe", "random", "grid")
HEARTBEAT = 20
"""Seconds between two signs of life of a trial; after three without one, another worker takes it up."""


@dataclass(frozen=True)
class Search:
    """A search; the same description is the same search."""

    config: Config
    words: tuple[str, ...]
    """What is searched, as ``esam.sweep.space`` reads it."""
    sampler: str = "tpe"
    trials: int = 20
    """How many in all, whoever does them; a grid has as many as it has points."""
    objectives: tuple[str, ...] = ("accuracy",)
    prune: bool = False
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What differs for a method, as in a comparison."""
    heartbeat: int = HEARTBEAT

    @property
    def space(self) -> Space:
        """What is searched."""
        return read_space(self.words)

    @property
    def start(self) -> Comparison:
        """What each trial starts from."""
        return Comparison(self.config, (self.config.method,), (self.config.seed,), self.settings)

    @property
    def judges(self) -> list[Objective]:
        """The objectives."""
        return [OBJECTIVES[name] for name in self.objectives]

    def check(self) -> Search:
        """Return the search if it can be done."""
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}")
        for name in self.objectives:
            if name not in OBJECTIVES:
                hint = did_you_mean(name, OBJECTIVES)
                raise ValueError(f"there is no objective {name!r}.{hint} There are: {', '.join(OBJECTIVES)}")
        if not self.objectives or len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"a search needs objectives that differ, got {self.objectives}")
        if self.prune and (len(self.objectives) > 1 or not self.judges[0].along):
            raise ValueError("only a search for accuracy alone, or for loss alone, can be pruned; leave --prune out")
        if self.trials < 1 or self.heartbeat < 1:
            raise ValueError(f"trials and heartbeat must be 1 or more, got {self.trials} and {self.heartbeat}")
        self.space.check(self.start)
        if self.sampler == "grid":
            list(self.space.grid(self.start))
        return self

    def functions(self) -> set[str]:
        """Return the functions of the user's own that its runs would import."""
        models = [value for d in self.space.dimensions if d.name == "model" for value in d.values]
        return {name for name in (self.config.data, self.config.model, *models) if is_factory(name)}

    def seed_of(self, number: int) -> int:
        """Return what a trial draws its choice from, whoever does it, and however often the search was interrupted."""
        told = f"{self.config.seed} {number}".encode()
        return int.from_bytes(hashlib.sha256(told).digest()[:4], "big")

    def same_as(self, other: Search) -> bool:
        """Tell whether both are the same search, but for the number of trials."""
        return replace(self, trials=1, heartbeat=1).as_json() == replace(other, trials=1, heartbeat=1).as_json()

    def as_json(self) -> dict[str, Any]:
        """Return the search as plain JSON values."""
        own = {name: {**given} for name, given in self.settings.items()}
        told = {name: getattr(self, name) for name in ("sampler", "trials", "prune", "heartbeat")}
        lists = {"words": list(self.words), "objectives": list(self.objectives)}
        return {"config": self.config.as_json(), "settings": own, **lists, **told}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Search:
        """Take back what ``as_json`` gave."""
        given = {**told, "config": Config.from_json(told["config"])}
        lists = {name: tuple(told[name]) for name in ("words", "objectives")}
        return cls(**{**given, **lists}).check()
