"""Figure 3: accuracy and speed of SWP for beta, and of SDS for gamma, from .3 to .9.

"The best performance of SWP is obtained when beta = 0.6 for ResNet-18 and beta = 0.5 for WideResNet-28-10 ... beta is
consistent among different architectures and datasets"; "gamma = 0.5 is the smallest value that is optimal for
efficiency while maintaining comparable performance to SAM"; SDS "can outperform SAM on both datasets with both
architectures with little degradation to the efficiency".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from esam.analysis.picture import INK, write_picture
from esam.report.sheets import Sheet

from . import rules
from .hyperparameters import Column, Scale
from .jobs import Job, training
from .results import Claim, Results
from .rules import BySeed, Verdict
from .tables import ABSENT, COLOURS

NUMBER, TITLE = "Figure 3", "SWP for seven betas, SDS for seven gammas"
STUDY: tuple[Column, ...] = (("ResNet-18", "CIFAR-10"), ("WRN-28-10", "CIFAR-10"))
SETTINGS = {"esam-swp": "beta", "esam-sds": "gamma"}


def jobs(scale: Scale, seeds: Sequence[int]) -> list[Job]:
    """Return a run for every value, seed by seed; SGD, SAM and ESAM are Table 1's."""
    return [
        training(scale, column, method, seed, **{setting: share})
        for seed in seeds
        for column in STUDY
        for method, setting in SETTINGS.items()
        for share in scale.shares
    ]


def studied(results: Results, column: Column, method: str) -> dict[float, BySeed]:
    """Return the accuracy by value and seed."""
    found = {s: results.accuracy(column, method, **{SETTINGS[method]: s}) for s in results.scale.shares}
    return {share: own for share, own in found.items() if own}


def tables(results: Results) -> Sequence[Sheet]:
    """Return accuracy against SAM, and speed, of every value."""
    rows = []
    for column in STUDY:
        sam, times = results.accuracy(column, "sam"), results.speeds(column)
        for method, setting in SETTINGS.items():
            for share, own in studied(results, column, method).items():
                gap = rules.paired(own, sam)
                speed = times.get(f"{method} {share:g}")
                words = ABSENT if gap is None else gap.words()
                fast = ABSENT if speed is None else f"{100 / fmean(speed):.0f} %"
                title = f"{results.title(column)}: {setting} = {share:g}"
                rows.append((title, f"{fmean(own.values()):.2f}", words, fast, str(len(own))))
    head = ("Task, value", "Accuracy, %", "over SAM", "of SAM's speed", "n")
    return [Sheet("Figure 3: SWP by beta, SDS by gamma; leads ± 95 % t interval", head, tuple(rows))]


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw points over SAM against the value, and speed against the value; SGD and ESAM as level lines."""
    columns = [column for column in STUDY if results.accuracy(column, "sam") and studied(results, column, "esam-swp")]
    if not columns:
        return []

    def drawn(figure: Any) -> None:
        grid = figure.subplots(2, len(columns), squeeze=False, sharex=True)
        for place, column in enumerate(columns):
            top, bottom = grid[0][place], grid[1][place]
            sam, times = results.accuracy(column, "sam"), results.speeds(column)
            for method, setting in SETTINGS.items():
                found = {
                    s: gap for s, own in studied(results, column, method).items() if (gap := rules.paired(own, sam))
                }
                label = f"{'SWP' if setting == 'beta' else 'SDS'} by {setting}, n = {min(g.n for g in found.values())}"
                offset = 0.008 if setting == "gamma" else -0.008
                halves = [gap.half if gap.n > 1 else 0.0 for gap in found.values()]
                xs = [share + offset for share in found]
                ys = [gap.mean for gap in found.values()]
                top.errorbar(xs, ys, yerr=halves, marker="o", ms=4, color=COLOURS[method], label=label, capsize=2)
                fast = {s: 100 / fmean(times[f"{method} {s:g}"]) for s in found if f"{method} {s:g}" in times}
                bottom.plot(list(fast), list(fast.values()), "o-", ms=4, color=COLOURS[method])
            for method, words in (("base", "SGD"), ("esam", "ESAM")):
                if gap := rules.paired(results.accuracy(column, method), sam):
                    top.axhline(gap.mean, color=COLOURS[method], linestyle=":", label=f"{words}, n = {gap.n}")
            for axes, level in ((top, 0), (bottom, 100)):
                axes.axhline(level, color=INK, linewidth=0.8)
                axes.grid(True)
            top.set_title(results.title(column), loc="left")
            bottom.set(xlabel="beta of SWP, gamma of SDS")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
        grid[0][0].set(ylabel="points over SAM")
        grid[1][0].set(ylabel="speed, % of SAM's")
        figure.suptitle("Figure 3; bars: 95 % t interval over seeds, paired with SAM", fontsize=9)

    return write_picture(folder / "figure3.png", drawn, width=8.0, height=5.6)


def _each(results: Results, judge: Any) -> Verdict:
    found = [verdict for column in STUDY if (verdict := judge(results, column)) is not None]
    return rules.worst(found) if found else Verdict(rules.NOT_RUN, "no runs")


def _best_beta(results: Results, column: Column) -> Verdict | None:
    values = studied(results, column, "esam-swp")
    return None if not values else _guarded(results, column, "esam-swp", values, rules.best_of(values, (0.5, 0.6)))


def _smallest_gamma(results: Results, column: Column) -> Verdict | None:
    values, sam = studied(results, column, "esam-sds"), results.accuracy(column, "sam")
    verdict = rules.smallest_that_keeps(values, 0.5, sam)
    return None if not values else _guarded(results, column, "esam-sds", values, verdict)


def _beats_sam(results: Results, column: Column) -> Verdict | None:
    """Judge that some gamma is above SAM and faster, by intervals corrected for the number of gammas."""
    values, sam, times = studied(results, column, "esam-sds"), results.accuracy(column, "sam"), results.speeds(column)
    found = {s: gap for s, own in values.items() if (gap := rules.paired(own, sam, len(values)))}
    if not found:
        return None
    faster = {s for s in found if (t := times.get(f"esam-sds {s:g}")) and rules.speed_ratio([1 / x for x in t]).low > 1}
    best = max(found, key=lambda share: found[share].low)
    words = f"best gamma {best:g} {found[best].words()}; faster than SAM at {sorted(faster)}"
    if any(found[share].low > 0 for share in faster):
        verdict = Verdict(rules.HOLDS, words)
    elif faster and all(found[share].high < 0 for share in faster):
        verdict = Verdict(rules.CONTRADICTED, words)
    else:
        verdict = Verdict(rules.INCONCLUSIVE, words, "no gamma that is faster is above SAM by its interval")
    return _guarded(results, column, "esam-sds", values, verdict)


def _guarded(results: Results, column: Column, method: str, values: dict[float, BySeed], verdict: Verdict) -> Verdict:
    fits = {f"{s:g}": results.fit(column, method, **{SETTINGS[method]: s}) for s in values}
    told = Verdict(verdict.verdict, f"{results.title(column)}: {verdict.measured}", verdict.reason)
    return rules.guarded(told, n=min(len(own) for own in values.values()), fits=fits)


def _consistent(results: Results) -> Verdict:
    """Judge that the best beta of each net serves the others: non-inferior to their own best (rule 6)."""
    found = {column: values for column in STUDY if (values := studied(results, column, "esam-swp"))}
    if len(found) < 2:
        return Verdict(rules.NOT_RUN, "two nets are needed")
    best = {c: max(values, key=lambda s, v=values: fmean(v[s].values())) for c, values in found.items()}  # type: ignore[misc]
    verdicts = []
    for column, values in found.items():
        for other, share in best.items():
            if other != column and share != best[column] and (gap := rules.paired(values[share], values[best[column]])):
                words = f"{results.title(column)}: {share:g} against its own best {best[column]:g}: {gap.words()}"
                verdicts.append(rules.guarded(rules.non_inferior(gap, words), n=gap.n, fits={}))
    return rules.worst(verdicts) if verdicts else Verdict(rules.HOLDS, f"best at {best[STUDY[0]]:g} on both")


def _saving_grows(method: str, *, linear: bool) -> Any:
    """Return the judge that what a method saves of SAM's time grows with 1 - its value, by a slope in each process."""

    def judge(results: Results, column: Column) -> Verdict | None:
        import numpy as np

        times = results.speeds(column)
        shares = [share for share in results.scale.shares if f"{method} {share:g}" in times]
        if len(shares) < 3:
            return None
        saved = np.array([[1 - t for t in times[f"{method} {share:g}"]] for share in shares])
        left = 1 - np.array(shares)
        slopes = [float(np.polyfit(left, process, 1)[0]) for process in saved.T]
        slope = rules.interval(slopes)
        mean = saved.mean(1)
        r2 = float(np.corrcoef(left, mean)[0, 1] ** 2)
        slower = [share for share, value in zip(shares, mean, strict=True) if value < 0]
        words = f"{results.title(column)}: {100 * slope.mean:.0f} ± {100 * slope.half:.0f} % of SAM's time, R² {r2:.3f}"
        words += f"; slower than SAM at {slower}" if slower else ""
        verdict = rules.above(slope, 0.0, words)
        return verdict.because("not linear: R² below .95") if linear and r2 < 0.95 else verdict

    return lambda results: _each(results, judge)


def _always_faster(results: Results, column: Column) -> Verdict | None:
    times = results.speeds(column)
    ratios = {
        s: rules.speed_ratio([1 / x for x in t]) for s in results.scale.shares if (t := times.get(f"esam-sds {s:g}"))
    }
    if not ratios:
        return None
    least = min(ratios, key=lambda share: ratios[share].mean)
    words = f"{results.title(column)}: {100 * ratios[least].mean:.0f} % of SAM's speed at gamma {least:g}"
    return rules.above(ratios[least], 1.0, words)


CLAIMS = (
    Claim("beta = .5 to .6 is best for SWP", "best at .6 and .5", lambda results: _each(results, _best_beta)),
    Claim("beta is consistent among nets", "set to .6 elsewhere", _consistent),
    Claim(
        "gamma = .5 is the smallest that keeps SAM's accuracy", "at .5", lambda results: _each(results, _smallest_gamma)
    ),
    Claim("SDS can beat SAM and be faster", "on all four", lambda results: _each(results, _beats_sam)),
    Claim("What SWP saves grows with 1 - beta", "in proportion, ideally", _saving_grows("esam-swp", linear=False)),
    Claim("What SDS saves is linear in 1 - gamma", "linear", _saving_grows("esam-sds", linear=True)),
    Claim(
        "SDS is faster than SAM at every gamma", "linear in 1 - gamma", lambda results: _each(results, _always_faster)
    ),
)
