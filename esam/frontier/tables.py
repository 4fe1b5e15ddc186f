"""Which tables tell the map?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from esam.optim import METHODS
from esam.report.settings import readable
from esam.report.settings import shown as value_words
from esam.report.sheets import Sheet
from esam.report.summaries import Spread, spread_of
from esam.report.words import ABSENT
from esam.train.runs import BASE_TITLES

from .entrants import ENTRANTS, Entrant
from .regimes import REGIMES
from .standings import (
    Map,
    Overall,
    Standing,
    behind,
    front_shares,
    overall,
    pooled_deviation,
    regime_title,
    shared,
    standard_error,
)


def with_error(spread: Spread | None, decimals: int = 1, *, sign: bool = False) -> str:
    """Write mean ± standard error: "45.2 ± 0.3"."""
    if spread is None:
        return ABSENT
    error = standard_error(spread)
    told = f"{spread.mean:{'+' if sign else ''}.{decimals}f}"
    return told if error is None else f"{told} ± {error:.{decimals}f}"


def regime_words(regime: str, standings: Sequence[Standing]) -> str:
    """Say what is trained in a regime, as its base's record has it."""
    config = next(one for one in standings if one.entrant == "base").runs[0].config
    kind = f"{REGIMES[regime].kind[:1].upper()}{REGIMES[regime].kind[1:]}; " if regime in REGIMES else ""
    net = config["model"].rpartition(":")[2].replace("_", " ")
    return (
        f"{kind}{net}, {config['train_size']:,} samples, {config['epochs']} epochs, {BASE_TITLES[config['optimizer']]}"
    )


def regime_sheet(regime: str, standings: Sequence[Standing]) -> Sheet:
    """Give one line an entrant: what it reached, what it took, and what the search chose."""
    shares = front_shares(standings)
    rows = [
        (
            one.title,
            str(one.last.n),
            with_error(one.last),
            with_error(one.over_base, sign=True),
            with_error(one.best),
            with_error(one.train, 0),
            f"{one.units:.2f}",
            f"{one.passes:.2f}",
            with_error(one.time, 2),
            f"{100 * shares[one.entrant]:.0f}",
            chosen(one.setting) + (f"; failed or diverged: {one.spoilt}" if one.spoilt else ""),
        )
        for one in sorted(standings, key=lambda one: -one.last.mean)
    ]
    head = (
        "Entrant",
        "n",
        "Last, %",
        "Over base",
        "Best, %",
        "Train, %",
        "Cost",
        "Passes",
        "Time",
        "On front, %",
        "Chosen",
    )
    return Sheet(regime_words(regime, standings), head, tuple(rows))


def overall_sheet(rows: Sequence[Overall], title: str = "") -> Sheet:
    """Give one line an entrant over all regimes, the best mean rank first."""
    lines = [
        (
            one.title,
            f"{one.units:.2f}",
            f"{one.time:.2f}",
            f"{one.rank.mean:.1f} ({one.interval[0]:.1f} to {one.interval[1]:.1f})",
            with_error(one.over_base, sign=True),
            with_error(one.over_sam, sign=True),
            f"{one.keeps_sam} of {one.regimes}",
            f"{100 * one.front:.0f}",
        )
        for one in rows
    ]
    head = ("Entrant", "Cost", "Time", "Mean rank", "Over base", "Over SAM", "Keeps SAM", "On front, %")
    return Sheet(title, head, tuple(lines))


def short_sheet(rows: Sequence[Overall], steps: Mapping[str, str], best: int = 3) -> Sheet:
    """Give the base, SAM and ESAM beside the best methods by mean rank: what fits a first page.

    ``steps`` tells by method what a step takes on larger nets.
    """
    methods = [one.entrant for one in rows if not one.control]
    shown = [one for one in rows if one.entrant in {"base", "sam", "esam", *methods[:best]}]
    whole = overall_sheet(shown)
    columns = [whole.head.index(name) for name in ("Entrant", "Cost", "Mean rank", "Over base", "Keeps SAM")]
    head, *lines = ([row[column] for column in columns] for row in (whole.head, *whole.rows))
    times = [
        steps.get(row.method, ABSENT) if _as_usual(row) else ABSENT for row in (ENTRANTS[o.entrant] for o in shown)
    ]
    told = [(*line[:2], time, *line[2:]) for line, time in zip(lines, times, strict=True)]
    return Sheet("", (*head[:2], "Step on ResNet-18 / ViT", *head[2:]), tuple(told))


def _as_usual(row: Entrant) -> bool:
    """Tell whether an entrant's step costs what its method's does by default."""
    return math.isclose(row.units(), METHODS[row.method].units() / METHODS["base"].units())


def beside_sheet(found: Map, name: str) -> Sheet:
    """Give one entrant beside the base, the best control and SAM in every regime, with a word on SAM's accuracy."""
    _, regimes = shared(found)
    lines = []
    for regime in regimes:
        rows = {one.entrant: one for one in found[regime]}
        own, deviation = rows[name], pooled_deviation(found[regime])
        control = max((one for one in rows.values() if one.control), key=lambda one: one.last.mean)
        behind = 0.0 if own.over_sam is None else own.over_sam.mean
        word = "above" if behind > deviation else "under" if behind < -deviation else "level"
        lines.append(
            (
                regime_title(regime),
                with_error(rows["base"].last),
                f"{with_error(control.last)} ({control.title})",
                with_error(rows["sam"].last),
                with_error(own.last),
                with_error(own.over_base, sign=True),
                f"{with_error(own.over_sam, sign=True)}, {word}",
            )
        )
    head = ("Regime", "Base, %", "Best control, %", "SAM, %", "It, %", "Over base", "Over SAM")
    return Sheet(f"{ENTRANTS[name].named('Base')} in every regime", head, tuple(lines))


def regimes_sheet(found: Map) -> Sheet:
    """Give what is trained in each regime, and how far the base fits it."""
    lines = []
    for name, standings in found.items():
        base = next(one for one in standings if one.entrant == "base")
        seconds = spread_of(run.end["cpu_seconds"] for run in base.runs if run.end is not None)
        assert seconds is not None
        told = regime_words(name, standings)
        lines.append((regime_title(name), told, with_error(base.train, 0), f"{seconds.mean:.0f}"))
    return Sheet("", ("Regime", "What", "Base fits, %", "Base takes, s"), tuple(lines))


def entrants_sheet() -> Sheet:
    """Give everyone who takes part, with the values that the search tries of its own setting."""
    lines = [
        (
            row.named("Base"),
            "control" if row.control else "method",
            f"{row.units():.2f}",
            ABSENT if row.knob is None else f"{row.knob} {', '.join(f'{value:g}' for value in sorted(row.values))}",
            ", ".join(f"{key} {value_words(value)}" for key, value in row.settings.items()) or ABSENT,
        )
        for row in ENTRANTS.values()
    ]
    return Sheet("", ("Entrant", "Kind", "Cost", "Searched", "Fixed"), tuple(lines))


def findings(found: Map) -> list[str]:
    """Say what the map shows of the methods that cost less than SAM, of ESAM and of the controls."""
    rows = {one.entrant: one for one in overall(found)}
    if "sam" not in rows:
        return []
    names, _ = shared(found)
    cheaper = [one for one in rows.values() if one.time < rows["sam"].time and not one.control]
    keeping = [one for one in cheaper if one.keeps_sam == one.regimes]
    closest = sorted(cheaper, key=lambda one: (-one.keeps_sam, one.time))[:3]
    told = []
    if keeping:
        listed = "; ".join(f"{one.title} ({one.time:.2f} times the base's time)" for one in keeping)
        told.append(f"In every regime at or above SAM, or under it by no more than seeds differ there: {listed}.")
    elif closest:
        listed = "; ".join(f"{one.title} ({one.keeps_sam} of {one.regimes}, {one.time:.2f} times)" for one in closest)
        told.append(f"No cheaper method keeps SAM's accuracy in every regime. Closest, with the base's time: {listed}.")
    for name in ("esam", *(name for name in names if name.startswith("slicesam"))):
        if name in rows:
            under_sam, under_base = (_titles(behind(found, name, other)) for other in ("sam", "base"))
            told.append(
                f"{rows[name].title}: {rows[name].time:.2f} times the base's time, mean rank "
                f"{rows[name].rank.mean:.1f}, by more than seeds differ under SAM in {under_sam} and under the base in "
                f"{under_base}."
            )
    controls = "; ".join(f"{one.title} {one.rank.mean:.1f}" for one in rows.values() if one.control)
    told.append(f"Mean ranks of the controls among {len(rows)}: {controls}. SAM's is {rows['sam'].rank.mean:.1f}.")
    return told


def _titles(regimes: Sequence[str]) -> str:
    return "; ".join(map(regime_title, regimes)) or "no regime"


def screening_sheet(found: Map) -> Sheet:
    """Give the accuracies of those that the screening dropped, beside the base's, with the seed of the screening."""
    staying, _ = shared(found)
    everyone = {one.entrant: one.title for rows in found.values() for one in rows}
    dropped = [name for name in everyone if name not in staying]
    regimes = [regime for regime, rows in found.items() if set(dropped) & {one.entrant for one in rows}]
    lines = []
    for name in [*(["base"] if dropped else []), *dropped]:
        standings = {regime: one for regime in regimes for one in found[regime] if one.entrant == name}
        cells = [f"{standings[regime].accuracies[0]:.1f}" if regime in standings else ABSENT for regime in regimes]
        units = next(iter(standings.values())).units
        lines.append((everyone[name] if name != "base" else "Base", f"{units:.2f}", *cells))
    return Sheet("Dropped after the screening", ("Entrant", "Cost", *map(regime_title, regimes)), tuple(lines))


def accuracy_sheet(found: Map) -> Sheet:
    """Give the accuracies of all entrants of the whole map, a column a regime, in the order of their mean ranks."""
    rows = overall(found)
    _, regimes = shared(found)
    by_regime = {regime: {one.entrant: one for one in found[regime]} for regime in regimes}
    lines = [(one.title, *(with_error(by_regime[regime][one.entrant].last) for regime in regimes)) for one in rows]
    return Sheet("Test accuracy, %", ("Entrant", *map(regime_title, regimes)), tuple(lines))


def chosen(setting: dict[str, Any]) -> str:
    """Say what the search chose: "lr 0.1, weight decay 0.0005, rho 0.05"."""
    return ", ".join(f"{readable(key)} {value_words(_short(value))}" for key, value in setting.items())


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
