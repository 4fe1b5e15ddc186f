"""``esam frontier``: which method for which price, in regimes that differ in kind?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .parsing import parse


@dataclass(frozen=True)
class FrontierOptions:
    """Methods and controls, tuned alike, in regimes that differ in kind. Interrupted, the same command resumes."""

    out: Path = Path("results/frontier")
    """Folder of the records."""
    stage: Literal["screen", "main", "finals", "all"] = "all"
    """A screening in three regimes, the survivors in all of them, more seeds for the best."""
    regimes: tuple[str, ...] = ()
    """Only these; all, if none is named."""
    entrants: tuple[str, ...] = ()
    """Only these; all, if none is named."""
    jobs: int = 1
    """Runs at a time, each on one thread."""


def frontier(arguments: list[str]) -> None:
    """``esam frontier``: run what is missing of the map."""
    options = parse("frontier", FrontierOptions, arguments)
    from esam.frontier.stages import STAGES, arena_of, make

    arena = arena_of(options.out, options.regimes, options.entrants)
    stages = STAGES if options.stage == "all" else (options.stage,)
    make(arena, stages, jobs=options.jobs, tell=lambda line: print(line, flush=True))
