"""Which method kept SAM's accuracy for which price, in nine small regimes? A closed study: its records, one picture.

    python -m experiments.frontier docs/frontier.png

docs/slicesam.md says what is wrong with this study. Its runs cannot be started again.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from esam.analysis.picture import INK, write_picture
from experiments.packs import read_pack

from .paper.rules import Interval, interval, minus

PACK = Path(__file__).resolve().parent.parent / "results" / "frontier.jsonl.xz"
TITLES = {
    "base": "Base (SGD or AdamW)",
    "base-long": "Base, twice as long",
    "base-small": "Base, batches of half the size",
    "base-half": "Base on half of each batch",
    "base-pieces": "Base in SliceSAM's pieces",
    "base-ema": "Base, averaged",
    "sam-short": "SAM, half as long",
    "sam": "SAM",
    "sam-late": "SAM in the last quarter",
    "sam-on": "SAM-ON",
    "asam": "ASAM",
    "looksam": "LookSAM",
    "esam": "ESAM",
    "esam-swp": "ESAM-SWP",
    "esam-random": "ESAM-random",
    "ae-sam": "AE-SAM",
    "msam": "Momentum-SAM",
    "saf": "SAF",
    "slicesam": "SliceSAM (an earlier form)",
    "slicesam-4th": "SliceSAM, every 4th step",
    "slicesam-aligned": "SliceSAM, aligned",
    "slicesam-fixed": "SliceSAM, one radius everywhere",
}
REGIMES = ("fits", "short", "wrong20", "wrong40", "cifar100", "vit", "adamw", "text", "finetune")


@dataclass(frozen=True)
class Row:
    """One candidate over the nine regimes; a gain has its 95 % t interval over them, in points."""

    name: str
    control: bool
    time: float
    """Processor time over the base's: the geometric mean."""
    over_sam: Interval


def read_rows() -> list[Row]:
    """Return the candidates that ran in every regime, the highest gain over SAM first."""
    accuracy: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, (first, *_, end) in read_pack(PACK).items():
        regime, candidate, kind = name.split("/")[:3]
        if kind == "runs" and end["status"] == "finished":
            accuracy[regime, candidate][first["seed"]] = 100 * end["test_accuracy"]["last"]
            seconds[regime, candidate].append(end["cpu_seconds"])
    rows = []
    for name, title in TITLES.items():
        gains = [fmean(minus(accuracy[regime, name], accuracy[regime, "sam"]).values()) for regime in REGIMES]
        times = [fmean(seconds[regime, name]) / fmean(seconds[regime, "base"]) for regime in REGIMES]
        control = name == "sam-short" or name.startswith("base")
        time = math.exp(fmean(map(math.log, times)))
        rows.append(Row(title, control, time, interval(gains)))
    return sorted(rows, key=lambda row: -row.over_sam.mean)


def draw(path: Path) -> list[Path]:
    """Draw each candidate's gain over SAM with its 95 % interval, and its time."""
    rows = read_rows()[::-1]

    def drawn(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, row in enumerate(rows):
            style = {"color": "#8a949e", "marker": "s"} if row.control else {"color": "#2a6f97", "marker": "o"}
            axes.errorbar(row.over_sam.mean, place, xerr=row.over_sam.half, **style)
        axes.set_yticks(range(len(rows)), [f"{row.name}, {row.time:.2f}" for row in rows], fontsize=9)
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
        axes.set(xlabel="points of test accuracy over SAM: mean of nine regimes, 95 % t interval")
        axes.set_xlim(-6, 3)  # LookSAM's collapsed runs would take two thirds of the width
        axes.annotate(rows[0].over_sam.words(1), (-5.9, 0.2), fontsize=8, color=INK)
        axes.set_title("Name, and time of training over the base's; squares: controls", loc="left", fontsize=9)

    return write_picture(path, drawn, width=8.0, height=6.4)


if __name__ == "__main__":
    print(*draw(Path(sys.argv[1])), sep="\n")
