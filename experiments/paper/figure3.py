"""Figure 3: accuracy and speed of SWP for beta, and of SDS for gamma, from .3 to .9.

"The best performance of SWP is obtained when beta = 0.6 for ResNet-18 and beta = 0.5 for WideResNet-28-10 ... beta is
consistent among different architectures and datasets"; "gamma = 0.5 is the smallest value that is optimal for
efficiency while maintaining comparable performance to SAM"; SDS "can outperform SAM on both datasets with both
architectures with little degradation to the efficiency".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from esam.analysis.picture import INK, write_picture

from . import rules
from .hyperparameters import STUDY, Column, Scale
from .jobs import Job, training
from .results import Claim, Judge, Results, on_each
from .rules import BySeed, Verdict
from .tables import COLOURS

NUMBER, TITLE = "Figure 3", "SWP for seven betas, SDS for seven gammas"
SETTINGS = {"esam-swp": "beta", "esam-sds": "gamma"}
BEST_BETA = {"ResNet-18": 0.6, "WRN-28-10": 0.5}
"""The paper's best; its best gamma is .5."""


def jobs(scale: Scale) -> Sequence[Job]:
    """Return a run for every value, seed by seed; SGD, SAM and ESAM are Table 1's."""
    return [
        training(scale, column, method, seed, **{setting: share})
        for seed in range(scale.few)
        for column in STUDY
        for method, setting in SETTINGS.items()
        for share in scale.shares
    ]


def studied(results: Results, column: Column, method: str) -> dict[float, BySeed]:
    """Return the accuracy by value and seed."""
    found = {s: results.accuracy(column, method, **{SETTINGS[method]: s}) for s in results.scale.shares}
    return {share: own for share, own in found.items() if own}


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw points over SAM against the value, and speed against the value; SGD and ESAM as level lines."""
    columns = [column for column in STUDY if results.accuracy(column, "sam") and studied(results, column, "esam-swp")]
    if not columns:
        return []

    def drawn(figure: Any) -> None:
        grid = figure.subplots(2, len(columns), squeeze=False, sharex=True)
        for (top, bottom), column in zip(grid.T, columns, strict=True):
            sam = results.accuracy(column, "sam")
            for method, setting in SETTINGS.items():
                values = studied(results, column, method)
                gaps = {s: gap for s, own in values.items() if (gap := rules.paired(own, sam))}
                if not gaps:
                    continue
                speeds = {s: speed for s in gaps if (speed := results.speed(column, f"{method} {s:g}"))}
                half = [100 * rules.finite(speed.half) for speed in speeds.values()]
                label = f"{'SWP' if setting == 'beta' else 'SDS'} by {setting}, n = {min(g.n for g in gaps.values())}"
                xs = [share + (0.008 if setting == "gamma" else -0.008) for share in gaps]  # bars beside each other
                halves = [rules.finite(gap.half) for gap in gaps.values()]
                style = {"marker": "o", "ms": 4, "color": COLOURS[method], "capsize": 2}
                top.errorbar(xs, [gap.mean for gap in gaps.values()], yerr=halves, label=label, **style)
                bottom.errorbar(list(speeds), [100 * speed.mean for speed in speeds.values()], yerr=half, **style)
                paper = BEST_BETA[column[0]] if setting == "beta" else 0.5
                top.axvline(paper, color=COLOURS[method], linewidth=5, alpha=0.15, label=f"the paper's best {setting}")
            for method, words in (("base", "SGD"), ("esam", "ESAM")):
                if gap := results.lead(column, method, over="sam"):
                    top.axhline(gap.mean, color=COLOURS[method], linestyle=":", label=f"{words}, n = {gap.n}")
            for axes, level in ((top, 0), (bottom, 100)):
                axes.axhline(level, color=INK, linewidth=0.8)
                axes.grid(True)
            top.set_title(results.title(column), loc="left")
            bottom.set(xlabel="beta of SWP, gamma of SDS")
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
        grid[0][0].set(ylabel="points over SAM")
        grid[1][0].set(ylabel="speed, % of SAM's")
        title = "Figure 3; bars: 95 % t intervals, above over n seeds paired with SAM, below over processes"
        figure.suptitle(title, fontsize=9)

    return write_picture(folder / "figure3.png", drawn, width=8.0, height=5.6)


def _judged(method: str, rule: Callable[[Results, Column, Mapping[float, BySeed]], Verdict]) -> Judge:
    """Return the judge of what a method's values come to on every net, with the conditions of rules 3 and 4."""

    def judge(results: Results, column: Column) -> Verdict | None:
        values = studied(results, column, method)
        if len(values) < len(results.scale.shares):  # Table 3 has one of them
            return None
        fits = {f"{s:g}": results.fit(column, method, **{SETTINGS[method]: s}) for s in values}
        verdict = rules.guarded(rule(results, column, values), n=min(map(len, values.values())), fits=fits)
        return verdict.on(results.title(column))

    return on_each(STUDY, judge)


def _beats_sam(results: Results, column: Column, values: Mapping[float, BySeed]) -> Verdict:
    """Judge that some gamma is above SAM and faster, by intervals corrected for the number of gammas."""
    sam = results.accuracy(column, "sam")
    gaps = {s: gap for s, own in values.items() if (gap := rules.paired(own, sam, len(values)))}
    if not gaps:
        return Verdict(rules.NOT_RUN, "SAM has no run of the same seed")
    speeds = {s: results.speed(column, f"esam-sds {s:g}") for s in gaps}
    faster = [s for s, speed in speeds.items() if speed is not None and speed.low > 1]
    best = max(gaps, key=lambda share: gaps[share].low)
    words = f"best gamma {best:g} {gaps[best].words()}; faster than SAM at {faster}"
    if any(gaps[share].low > 0 for share in faster):
        return Verdict(rules.HOLDS, words)
    if faster and all(gaps[share].high < 0 for share in faster):
        return Verdict(rules.CONTRADICTED, words)
    return Verdict(rules.INCONCLUSIVE, words, "no gamma that is faster is above SAM by its interval")


BEST = _judged("esam-swp", lambda results, column, values: rules.best_of(values, (0.5, 0.6)))
SMALLEST = _judged(
    "esam-sds",
    lambda results, column, values: rules.smallest_that_keeps(values, 0.5, results.accuracy(column, "sam")),
)


def _consistent(results: Results) -> Verdict:
    """Judge that the best beta of each net serves the other: non-inferior to its own best (rule 6)."""
    found = {column: studied(results, column, "esam-swp") for column in STUDY}
    if any(len(values) < len(results.scale.shares) for values in found.values()):
        return Verdict(rules.NOT_RUN, "all values on two nets are needed")
    means = {column: {s: fmean(own.values()) for s, own in values.items()} for column, values in found.items()}
    best = {column: max(own, key=own.__getitem__) for column, own in means.items()}
    verdicts = []
    for column, other in (STUDY, STUDY[::-1]):
        gap = rules.paired(found[column][best[other]], found[column][best[column]])
        assert gap is not None, "every value has the same seeds"
        words = f"{results.title(column)}: {best[other]:g} against its own best {best[column]:g}: {gap.words()}"
        fits = {f"{s:g}": results.fit(column, "esam-swp", beta=s) for s in best.values()}
        verdicts.append(rules.guarded(rules.above(gap, -rules.MARGIN, words), n=gap.n, fits=fits))
    return rules.worst(verdicts)


def _saving_grows(method: str, *, linear: bool) -> Judge:
    """Return the judge that what a method saves of SAM's time grows with 1 - its value, by a slope in each process."""

    def judge(results: Results, column: Column) -> Verdict | None:
        import numpy as np

        times = results.times(column)
        shares = [share for share in results.scale.shares if f"{method} {share:g}" in times]
        if len(shares) < 3:
            return None
        saved = 1 - np.array([times[f"{method} {share:g}"] for share in shares])
        left, mean = 1 - np.array(shares), saved.mean(1)
        slope = rules.interval([float(np.polyfit(left, process, 1)[0]) for process in saved.T])
        r2 = float(np.corrcoef(left, mean)[0, 1] ** 2)
        slower = ", ".join(f"{share:g}" for share, value in zip(shares, mean, strict=True) if value < 0)
        words = f"{100 * slope.mean:.0f} ± {100 * slope.half:.0f} % of SAM's time, R² {r2:.3f}"
        verdict = rules.above(slope, 0.0, f"{words}; slower than SAM at {slower}" if slower else words)
        verdict = verdict.because("not linear: R² below .95") if linear and r2 < 0.95 else verdict
        return verdict.on(results.title(column))

    return on_each(STUDY, judge, "not timed")


def _always_faster(results: Results, column: Column) -> Verdict | None:
    speeds = {s: speed for s in results.scale.shares if (speed := results.speed(column, f"esam-sds {s:g}"))}
    if not speeds:
        return None
    least = min(speeds, key=lambda share: speeds[share].mean)
    words = f"{results.title(column)}: {100 * speeds[least].mean:.0f} % of SAM's speed at gamma {least:g}"
    return rules.above(speeds[least], 1.0, words)


CLAIMS = (
    Claim("beta = .5 to .6 is best for SWP", "best at .6 and .5", BEST),
    Claim("beta is consistent among nets", "set to .6 elsewhere", _consistent),
    Claim("gamma = .5 is the smallest that keeps SAM's accuracy", "at .5", SMALLEST),
    Claim("SDS can beat SAM and be faster", "on all four", _judged("esam-sds", _beats_sam)),
    Claim("What SWP saves grows with 1 - beta", "in proportion, ideally", _saving_grows("esam-swp", linear=False)),
    Claim("What SDS saves is linear in 1 - gamma", "linear", _saving_grows("esam-sds", linear=True)),
    Claim("SDS is faster than SAM at every gamma", "linear in 1 - gamma", on_each(STUDY, _always_faster, "not timed")),
)
