"""What does the estimator's measurement look like? Cosine, length and noise against slice and radius."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .estimator import RADIUS, SIZES

KINDS = {
    ("cifar10", "as is"): "ResNet-8, BatchNorm",
    ("cifar10", "GroupNorm"): "ResNet-8, GroupNorm",
    ("gpt", "as is"): "GPT",
}
VALUES = {
    "cosine": "cosine to SAM's mean correction",
    "length": "length, in SAM's",
    "noise": "noise of one step,\nin the batch gradient's",
}


SHADES = ("#c9b3f5", "#9a5cf0", "#4b12a8")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw a row a net and a column a value; a line a moment of training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = [kind for kind in KINDS if any((r["task"], r["norm"]) == kind for r in rows)]
    drawn, axes = plt.subplots(len(kinds), 4, figsize=(11, 2.3 * len(kinds) + 0.5), squeeze=False, sharex="col")
    for line, kind in zip(axes, kinds, strict=True):
        ours = [r for r in rows if (r["task"], r["norm"]) == kind]
        by_radius(line[3], ours)
        for axis, (value, label) in zip(line[:3], VALUES.items(), strict=True):
            for moment, shade in zip(sorted({r["moment"] for r in ours}), SHADES, strict=True):
                at = [r for r in ours if r["moment"] == moment and (value == "noise" or r["resolved"])]
                name = f"after {moment:.0%} of training"
                axis.plot(*points(at, "slice", value), "o-", color=shade, label=f"slice, {name}", markersize=4)
                label_of_part = f"ascent on a part, {name}"
                axis.plot(*points(at, "ascent", value), "s--", color=shade, label=label_of_part, markersize=4, mfc="w")
            axis.axhline(1, color="#99a", linewidth=0.8)
            axis.set_xscale("log", base=2)
            axis.set_xticks(SIZES, map(str, SIZES))
            axis.set_title(label, fontsize=8)
            axis.tick_params(labelsize=8)
            axis.set_ylim(bottom=0)
            if value == "cosine":
                axis.set_ylim(0, 1.3)
                axis.set_ylabel(KINDS[kind], fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("radius" if axis is axes[-1][3] else "samples in S", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="lower center", ncol=3, fontsize=7, frameon=False)
    drawn.tight_layout(rect=(0, 0.06, 1, 1))
    drawn.savefig(path, dpi=150)


def points(rows: list[dict[str, Any]], kind: str, value: str) -> tuple[list[int], list[float]]:
    """Return sizes and values of the estimators of a kind at SAM's own radius."""
    named = [r for r in rows if r["estimator"].startswith(kind) and "radius" not in r["estimator"]]
    return [int(r["estimator"].split()[1]) for r in named], [r[value] for r in named]


def by_radius(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the noise of a slice of 16 against the radius, a line a moment."""
    for moment, shade in zip(sorted({r["moment"] for r in rows}), SHADES, strict=True):
        named = [r for r in rows if r["moment"] == moment and r["estimator"].startswith("slice 16")]
        found = sorted((float(r["estimator"].partition("radius ")[2] or RADIUS), r["noise"]) for r in named)
        axis.plot(*zip(*found, strict=True), "o-", color=shade, markersize=4)
    axis.axhline(1, color="#99a", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xticks([0.01, RADIUS, 0.15], ["0.01", f"{RADIUS:g}", "0.15"])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_title("noise, slice of 16, by radius", fontsize=8)
    axis.tick_params(labelsize=8)


def main() -> None:
    """Draw the committed measurement."""
    parser = argparse.ArgumentParser(prog="python -m experiments.trial.estimator_figure", description=__doc__)
    parser.add_argument("--records", type=Path, default=Path("results/estimator.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/estimator.png"))
    options = parser.parse_args()
    draw(json.loads(options.records.read_text()), options.out)


if __name__ == "__main__":
    main()
