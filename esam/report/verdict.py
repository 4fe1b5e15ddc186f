"""Who won, by how much and at what price, and what should be changed? One answer for the page and the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from esam.optim import METHODS
from esam.report.measured import ABSENT, Measured, difference
from esam.report.summaries import MethodSummary

BEHIND = 1.0
"""Points of accuracy under the base from which on a method is warned of."""
BEHIND_LOSS = 1.05
"""Times the base's test loss from which on it is, where the targets are no classes."""
SLOW = 1.3
"""Measured time over counted cost from which on a method is dearer here than its passes say."""
ENOUGH_STEPS = 2_000
"""With fewer, most nets have not fitted their data."""
SMALL_BATCH = 32


@dataclass(frozen=True)
class Tile:
    """One figure of the page's first screen."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Verdict:
    """The answer in a sentence or two, and the methods that may be best: no other is clearly better."""

    sentence: str
    best: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()


@dataclass(frozen=True)
class Advice:
    """What is wrong with the results of some methods, in a word and in a line that says what to change."""

    word: Literal["diverged", "under-fits", "behind", "slow"]
    names: tuple[str, ...]
    line: str


def verdict(methods: Sequence[MethodSummary]) -> Verdict:
    """Say who won under one condition, by how much and at what price; or that it cannot be told."""
    lost = [_lost(one) for one in methods if one.diverged]
    scores = [(one.score.mean, one) for one in methods if one.score is not None]
    scored = [one for _, one in sorted(scores, key=lambda pair: -pair[0])]
    if not scored:
        return Verdict(" ".join(lost) or "No run has finished yet.")
    said, best = _sentence(scored)
    return Verdict(" ".join([said, *lost]), best, tuple(_tiles(methods, scored)))


def _sentence(scored: Sequence[MethodSummary]) -> tuple[str, tuple[str, ...]]:
    """Return the answer, and the methods than which none is clearly better; ``scored`` has the best first."""
    best, base = scored[0], next((one for one in scored if one.is_base), None)
    by_accuracy, reached = best.accuracy is not None, {one.name: _reached(one) for one in scored}
    seeds = sorted({one.n for one in scored})
    over = f"{' to '.join(map(str, [seeds[0], *seeds[1:][-1:]]))} seed{'s' * (seeds != [1])}"
    if len(scored) == 1:
        return f"{best.name} reached {reached[best.name]} with {over}.", ()
    if (chance := _all_at_chance(scored)) is not None:
        return f"All methods are at chance ({chance}): nothing was learnt, so nothing can be compared.", ()
    if seeds[0] == 1:
        others = scored[1:] if len(scored) < 4 else [scored[-1] if base in (None, best) else base]
        rest = ", ".join(f"{one.name} has {reached[one.name]}" for one in others if one is not None)
        first = f"the {'highest' if by_accuracy else 'lowest'} is {best.name} with {reached[best.name]}"
        return f"Which method is better cannot be told from one seed: {first}, {rest}{_test_error(best)}.", ()
    gaps = {one.name: difference(best.score, one.score) for one in scored[1:]}
    level = [one for one in scored[1:] if (each := gaps[one.name]) is None or not each.clear]
    names = (best.name, *(one.name for one in level))
    gap = None if base is None else gaps.get(base.name)
    if base is not None and gap is not None and not gap.clear:
        both = f"{best.name} has {reached[best.name]}, {base.name} {reached[base.name]}"
        why = f"and the 95 % interval of the difference includes 0{_price(best, base)}"
        return f"Whether any method beats {base.name} cannot be told from {over}: {both}, {why}.", names
    if base is None or gap is None:
        said = f"No method beats {best.name} ({reached[best.name]}, {over})."
    else:
        ends = f"{gap.value - gap.half_width:.1f} to {gap.value + gap.half_width:.1f}"
        by = f"{gap.value:.1f} points over {base.name} (95 % interval {ends}, {over})"
        by = by if by_accuracy else f"{base.name} has {reached[base.name]} ({over}, clear at 95 %)"
        said = f"Best: {best.name} with {reached[best.name]}, {by}{_price(best, base)}."
    if level:
        said += f" Not distinguishable from it: {_listed([one.name + _times(one) for one in level])}."
    return said, names


def _lost(one: MethodSummary) -> str:
    return f"{one.name} diverged with {one.diverged} of {one.n + one.diverged} seeds."


def _reached(one: MethodSummary) -> str:
    if one.accuracy is None:
        return f"a test loss of {one.test_loss.format() if one.test_loss else ABSENT}"
    mean, std = 100 * one.accuracy.mean, one.accuracy.std
    decimals = 2 if std is not None and std < 0.0005 else 1  # "± 0.0" would look exact
    return f"{mean:.{decimals}f} %" + ("" if std is None else f" ± {100 * std:.{decimals}f}")


def _price(one: MethodSummary, base: MethodSummary) -> str:
    return "" if one.time_ratio is None else f", at {one.time_ratio:.2f} times {base.name}'s {_kind(one)} time"


def _times(one: MethodSummary) -> str:
    return "" if one.time_ratio is None else f" ({one.time_ratio:.2f} times)"


def _kind(one: MethodSummary) -> str:
    return "processor" if one.processor_time else "training"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _test_samples(one: MethodSummary) -> int | None:
    found = (one.runs[0].data or {}).get("test")
    return found if isinstance(found, int) and found > 0 else None


def _test_error(one: MethodSummary) -> str:
    """Say how far an accuracy may lie from the truth by the choice of the test samples alone."""
    count, accuracy = _test_samples(one), one.accuracy
    if count is None or accuracy is None:
        return ""
    points = 196 * math.sqrt(max(accuracy.mean * (1 - accuracy.mean), 1 / count) / count)
    return f"; {count:,} test samples alone leave ± {points:.1f} points"


def _all_at_chance(methods: Sequence[MethodSummary]) -> str | None:
    """Say what guessing would reach, where no method is above it by more than two standard errors."""
    facts = next((run.data for one in methods for run in one.runs if run.data), None) or {}
    counts = [count for count in (facts.get("of_each_class") or {}).get("test") or () if count]
    number = len(facts.get("classes") or counts)
    if number < 2 or any(one.accuracy is None for one in methods):
        return None
    share = max(counts) / sum(counts) if counts else 1 / number
    errors = 2 * math.sqrt(share * (1 - share) / (_test_samples(methods[0]) or 2_500))
    most = share + min(errors, (1 - share) / 2)  # of few test samples, no error is far from chance
    if any(one.accuracy is not None and one.accuracy.mean > most for one in methods):
        return None
    uneven = abs(share - 1 / number) > 0.005
    return (
        f"{100 * share:.0f} %, the commonest of {number} classes"
        if uneven
        else f"{100 * share:.0f} % of {number} classes"
    )


def _tiles(methods: Sequence[MethodSummary], scored: Sequence[MethodSummary]) -> list[Tile]:
    """Return the figures of the best method, and of the best one beside the base what it gains and costs."""
    best, base = scored[0], next((one for one in methods if one.is_base), None)
    head = best.score
    assert head is not None
    by_accuracy = best.accuracy is not None
    spread = f"{best.name}, one seed" if head.std is None else f"{best.name}, ± {head.std:.2g} over {head.n} seeds"
    value = f"{head.mean:.1f} %" if by_accuracy else Measured(-head.mean, None, 1).format()
    found = [Tile("Highest test accuracy" if by_accuracy else "Lowest test loss", value, spread)]
    other = next((one for one in scored if one is not base), None)
    if base is not None and other is not None and by_accuracy:
        gain = other.gain
        note = "needs two seeds or more" if gain is None else f"95 %: {gain.format().partition('(')[2].rstrip(')')}"
        value = "cannot be told" if gain is None or not gain.clear else f"{gain.value:+.1f} points"
        found.append(Tile(f"{other.name} over {base.name}", value, note))
    if base is not None and other is not None and other.time_ratio is not None:
        counted = "" if other.counted_ratio is None else f"; its passes count {other.counted_ratio:.2f}×"
        note = f"{base.name}'s {_kind(other)} time{counted}"
        found.append(Tile(f"Time of {other.name}", f"{other.time_ratio:.2f}×", note))
    fits = {one.name: 100 * one.train_accuracy.mean for one in methods if one.train_accuracy is not None}
    if fits:
        low = min(fits, key=lambda name: fits[name])
        found.append(Tile("Training accuracy", f"{max(fits.values()):.3g} %", f"lowest: {low}, {fits[low]:.3g} %"))
    return found


def advice(methods: Sequence[MethodSummary]) -> list[Advice]:
    """Return what to change: each kind of trouble once, with the methods that have it."""
    base = next((one for one in methods if one.is_base), None)
    unfitted = [one for one in methods if one.train_accuracy is not None and not one.fitted and not one.diverged]
    fits = base is not None and base.train_accuracy is not None and base.fitted
    behind = [
        one for one in methods if not one.is_base and one not in unfitted and not one.diverged and _is_behind(one)
    ]
    slow = [one for one in methods if (one.time_ratio or 0) > max(1, SLOW * (one.counted_ratio or math.inf))]
    return [
        *(_diverged(one) for one in methods if one.diverged),
        *([_underfits(unfitted, base if fits else None)] if unfitted else []),
        *([_behind(behind)] if behind else []),
        *([_slow(slow, methods)] if slow else []),
    ]


def _is_behind(one: MethodSummary) -> bool:
    lead, base = one.lead, one.base
    if lead is None or base is None or not lead.clear:
        return False
    loss = 0.0 if base.test_loss is None else abs(base.test_loss.mean)
    return lead.value < -(BEHIND if one.accuracy is not None else (BEHIND_LOSS - 1) * loss)


def _diverged(one: MethodSummary) -> Advice:
    lr = next(run for run in one.unfinished if run.diverged).config.get("lr")
    ways = [*([f"a lower lr (now {lr:g})"] if isinstance(lr, (int, float)) else []), *_nearer_the_base(one)]
    line = f"{_lost(one).rstrip('.')}: its loss was not finite. Try {' or '.join(ways) or 'another method'}."
    return Advice("diverged", (one.name,), line)


def _underfits(several: Sequence[MethodSummary], fitted_base: MethodSummary | None) -> Advice:
    names = [f"{one.name} ({100 * one.train_accuracy.mean:.3g} %)" for one in several if one.train_accuracy]
    has = "has" if len(names) == 1 else "have"
    line = f"{_listed(names)} {has} not fitted the training data"
    config = several[0].runs[0].config
    samples = (several[0].runs[0].data or {}).get("train")
    epochs, size, lr = (config.get(key) for key in ("epochs", "batch_size", "lr"))
    ways = []
    if isinstance(samples, int) and epochs and size and config.get("budget") is None:
        a_epoch = math.ceil(samples / size)
        enough = max(2 * epochs, math.ceil(ENOUGH_STEPS / a_epoch))
        if epochs * a_epoch < ENOUGH_STEPS:
            line += f": {epochs} epochs are only {epochs * a_epoch:,} steps on this data set"
        ways.append(f"more epochs ({enough}, now {epochs})")
        ways += [f"smaller batches ({SMALL_BATCH}, now {size})"] if size > SMALL_BATCH else []
    else:
        ways.append("a longer training")
    if isinstance(lr, (int, float)) and fitted_base is None:
        ways.append(f"another learning rate ({lr / 10:g}, now {lr:g})")
    if fitted_base is not None:
        line = f"{line}; {fitted_base.name} has"
        ways += _nearer_the_base(several[0])
    return Advice(
        "under-fits", tuple(one.name for one in several), f"{line}. Try {', '.join(ways[:-1])} or {ways[-1]}."
    )


def _behind(several: Sequence[MethodSummary]) -> Advice:
    base = several[0].base
    assert base is not None
    names = []
    for one in several:
        if one.gain is not None:
            names.append(f"{one.name} ({-one.gain.value:.1f} points)")
        elif one.test_loss is not None and base.test_loss is not None:
            names.append(f"{one.name} ({one.test_loss.mean / base.test_loss.mean:.3g} times its test loss)")
    fits = " though fitted" if any(one.train_accuracy is not None for one in several) else ""
    ways = list(dict.fromkeys(way for one in several for way in _nearer_the_base(one)))
    tuned = any(run.config.get("tuned") for one in several for run in one.runs)
    ways.append("another method" if tuned else "--tune 4, which searches rho on held-out training data")
    line = f"Behind {base.name}{fits}: {_listed(names)}. Try {' or '.join(ways)}."
    return Advice("behind", tuple(one.name for one in several), line)


def _slow(several: Sequence[MethodSummary], methods: Sequence[MethodSummary]) -> Advice:
    base = several[0].base
    assert base is not None
    names = [f"{one.name} {one.time_ratio:.2f} times (its passes count {one.counted_ratio:.2f})" for one in several]
    least = min(one.time_ratio or math.inf for one in several)
    quick = [one for one in methods if one.time_ratio and one.time_ratio < least and one not in several]
    kinds = {one.name: METHODS[one.method].kind for one in quick if one.method in METHODS}
    instead = min(
        (one for one in quick if not one.is_base and kinds.get(one.name, "method") == "method"),
        key=lambda one: one.time_ratio or math.inf,
        default=base,
    )
    took = "" if instead is base else f", which took {instead.time_ratio:.2f} times"
    line = (
        f"Dearer here than counted, in {base.name}'s {_kind(base)} time: {_listed(names)}. With a small model or batch "
        f"a pass costs its calls, however few its samples. Use larger batches, or {instead.name}{took}."
    )
    return Advice("slow", tuple(one.name for one in several), line)


def _nearer_the_base(one: MethodSummary) -> list[str]:
    """Return settings of the method that would bring it nearer to the base."""
    settings = one.effective()
    ways = []
    if isinstance(settings.get("gamma"), float) and settings["gamma"] < 1:
        ways.append(f"gamma 1, with which all samples train (now {settings['gamma']:g})")
    if isinstance(settings.get("rho"), (int, float)) and settings["rho"] > 0:
        ways.append(f"a smaller rho (now {settings['rho']:g})")
    return ways
