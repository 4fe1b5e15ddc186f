"""``esam frontier``: which method for which price, in regimes that differ in kind?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from esam.compare.where import Where
from esam.report.sheets import Form

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
    """Runs at a time on this machine, each on one thread; a cluster does as many as it has room for."""
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)
    map: bool = False
    """Run nothing: make table, page and picture from the records that are there."""
    format: Form = "table"
    """How the table is printed."""


def frontier(arguments: list[str]) -> None:
    """``esam frontier``: run what is missing of the map, then draw it."""
    options = parse("frontier", FrontierOptions, arguments)
    from esam.extras import require
    from esam.files import check_folder
    from esam.frontier.stages import STAGES, arena_of, make

    require("matplotlib", "plotly", "jinja2", purpose="the map")
    check_folder(options.out)
    arena = arena_of(options.out, options.regimes, options.entrants)
    if not options.map:
        stages = STAGES if options.stage == "all" else (options.stage,)
        tell = lambda line: print(line, flush=True)  # noqa: E731
        with options.where.place(options.jobs) as place:
            make(arena, stages, jobs=options.jobs, tell=tell, place=place if options.where.cluster else None)
    _show(options.out, options.format)


def _show(folder: Path, form: Form) -> None:
    from esam.frontier.figure import draw_map
    from esam.frontier.page import write_map
    from esam.frontier.standings import overall, read_map
    from esam.frontier.tables import overall_sheet
    from esam.report.sheets import formatted

    found = read_map(folder)
    if not found:
        raise ValueError(f"{folder} holds no finished run of the base; run esam frontier without --map first")
    print(formatted([overall_sheet(overall(found), f"Over {len(found)} regimes")], form))
    pictures = draw_map(folder / "map", found)
    print(f"\npage: {write_map(folder, found)}, picture: {', '.join(map(str, pictures))}", flush=True)
