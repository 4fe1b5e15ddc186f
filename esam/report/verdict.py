"""Who won, by how much and at what price, and what should be changed? One answer for the page and the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from esam.report.measured import difference, written
from esam.report.settings import recorded_settings
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
class Verdict:
    """The answer in a sentence or two, and the methods that may be best: no other is clearly better."""

    sentence: str
    best: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advice:
    """What is wrong with the results of some methods, in a word and in a line that says what to change."""

    word: Literal["diverged", "under-fits", "behind", "slow"]
    names: tuple[str, ...]
    line: str


def verdict(methods: Sequence[MethodSummary]) -> Verdict:
    """Say who won under one condition, by how much and at what price; or that it cannot be told."""
    lost = [f"{_lost(summary)}." for summary in methods if summary.diverged]
    scores = [(summary.score.mean, summary) for summary in methods if summary.score is not None]
    ranked = [summary for _, summary in sorted(scores, key=lambda pair: -pair[0])]
    winner = _compared(ranked) if ranked else Verdict("" if lost else "No run has finished yet.")
    return Verdict(" ".join(filter(None, [winner.sentence, *lost])), winner.best)


def _compared(ranked: Sequence[MethodSummary]) -> Verdict:
    """Compare methods, the best first."""
    best, base = ranked[0], next((summary for summary in ranked if summary.is_base), None)
    by_accuracy, reached = best.accuracy is not None, {summary.name: _reached(summary) for summary in ranked}
    seeds = sorted({summary.n for summary in ranked})
    over = f"{' to '.join(map(str, [seeds[0], *seeds[1:][-1:]]))} seed{'s' * (seeds != [1])}"
    if len(ranked) == 1:
        return Verdict(f"{best.name} reached {reached[best.name]} with {over}.")
    if (chance := _all_at_chance(ranked)) is not None:
        return Verdict(f"All methods are at chance ({chance}): nothing was learnt, so nothing can be compared.")
    several = [summary for summary in ranked if summary.n > 1]
    if seeds[0] == 1 and len(several) > 1 and (base is None or base.n > 1):
        known, lone = _compared(several), [f"{each.name} ({reached[each.name]})" for each in ranked if each.n == 1]
        return Verdict(f"{known.sentence} With one seed only, and so not compared: {listed(lone)}.", known.best)
    if seeds[0] == 1:
        others = ranked[1:] if len(ranked) < 4 else [ranked[-1] if base in (None, best) else base]
        rest = ", ".join(f"{summary.name} has {reached[summary.name]}" for summary in others if summary is not None)
        first = f"the {'highest' if by_accuracy else 'lowest'} is {best.name} with {reached[best.name]}"
        return Verdict(f"Which method is better cannot be told from one seed: {first}, {rest}{_test_error(best)}.")
    gaps = {summary.name: difference(best.score, summary.score) for summary in ranked[1:]}
    level = [summary for summary in ranked[1:] if (each := gaps[summary.name]) is None or not each.clear]
    names = (best.name, *(summary.name for summary in level))
    gap = None if base is None else gaps.get(base.name)
    price = "" if best.time_ratio is None or base is None else f", at {best.time_ratio:.2f} times {_time_of(base)}"
    if base is None or gap is None:
        said = f"No method beats {best.name} ({reached[best.name]}, {over})."
    elif not gap.clear:
        both = f"{best.name} has {reached[best.name]}, {base.name} {reached[base.name]}"
        why = f"and the 95 % interval of the difference includes 0{price}"
        return Verdict(f"Whether any method beats {base.name} cannot be told from {over}: {both}, {why}.", names)
    else:
        ends = f"{gap.value - gap.half_width:.1f} to {gap.value + gap.half_width:.1f}"
        by = f"{gap.value:.1f} points over {base.name} (95 % interval {ends}, {over})"
        by = by if by_accuracy else f"{base.name} has {reached[base.name]} ({over}, clear at 95 %)"
        said = f"Best: {best.name} with {reached[best.name]}, {by}{price}."
    if level:
        times = {
            summary.name: "" if summary.time_ratio is None else f" ({summary.time_ratio:.2f} times)"
            for summary in level
        }
        said += f" Not distinguishable from it: {listed([name + words for name, words in times.items()])}."
    return Verdict(said, names)


def listed(words: Sequence[str]) -> str:
    """Join words as people do: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _lost(summary: MethodSummary) -> str:
    return f"{summary.name} diverged with {summary.diverged} of {summary.n + summary.diverged} seeds"


def _reached(summary: MethodSummary) -> str:
    if summary.accuracy is None:
        return f"a test loss of {written(summary.test_loss)}"
    std = summary.accuracy.std
    decimals = 1 if std is None or std >= 0.0005 else 2  # "± 0.0" would look exact
    mean, *spread = written(summary.accuracy, factor=100, decimals=decimals).split(" ± ")
    return " ± ".join([f"{mean} %", *spread])


def _time_of(base: MethodSummary) -> str:
    return f"{base.name}'s {'processor' if base.processor_time else 'training'} time"


def _test_error(summary: MethodSummary) -> str:
    """Say how far an accuracy may lie from the truth by the choice of the test samples alone."""
    count, accuracy = (summary.runs[0].data or {}).get("test"), summary.accuracy
    if not count or accuracy is None:
        return ""
    points = 196 * math.sqrt(max(accuracy.mean * (1 - accuracy.mean), 1 / count) / count)
    return f"; {count:,} test samples alone leave ± {points:.1f} points"


def _all_at_chance(methods: Sequence[MethodSummary]) -> str | None:
    """Say what guessing would reach, where no method is above it by more than two standard errors."""
    facts = next((run.data for summary in methods for run in summary.runs if run.data), None) or {}
    counts = [count for count in (facts.get("of_each_class") or {}).get("test") or () if count]
    number = len(facts.get("classes") or counts)
    reached = [summary.accuracy.mean for summary in methods if summary.accuracy is not None]
    if number < 2 or len(reached) < len(methods):
        return None
    share = max(counts) / sum(counts) if counts else 1 / number
    errors = 2 * math.sqrt(share * (1 - share) / (facts.get("test") or 2_500))
    if max(reached) > share + min(errors, (1 - share) / 2):  # of few test samples, no error is far from chance
        return None
    return f"{100 * share:.0f} %{', the commonest' if abs(share - 1 / number) > 0.005 else ''} of {number} classes"


def advice(methods: Sequence[MethodSummary]) -> list[Advice]:
    """Return what to change: each kind of trouble once, with the methods that have it."""
    base = next((each for each in methods if each.is_base), None)
    steady = [each for each in methods if not each.diverged]
    made = [Advice("diverged", (each.name,), _diverged(each)) for each in methods if each.diverged]
    if unfitted := [each for each in steady if not each.fitted]:
        made.append(Advice("under-fits", _names(unfitted), _underfits(unfitted, base)))
    if base and (behind := [each for each in steady if each.fitted and not each.is_base and _is_behind(each, base)]):
        made.append(Advice("behind", _names(behind), _behind(behind, base)))
    slow = [each for each in methods if (each.time_ratio or 0) > max(1, SLOW * (each.counted_ratio or math.inf))]
    if base and slow:
        made.append(Advice("slow", _names(slow), _slow(slow, base)))
    return made


def _names(methods: Sequence[MethodSummary]) -> tuple[str, ...]:
    return tuple(each.name for each in methods)


def _diverged(summary: MethodSummary) -> str:
    lr = next(run for run in summary.unfinished if run.diverged).config.get("lr")
    ways = [*([f"a lower lr (now {lr:g})"] if isinstance(lr, (int, float)) else []), *_nearer_the_base(summary)]
    return f"{_lost(summary)}: its loss was not finite. Try {' or '.join(ways) or 'another method'}."


def _underfits(several: Sequence[MethodSummary], base: MethodSummary | None) -> str:
    names = [f"{each.name} ({100 * each.train_accuracy.mean:.3g} %)" for each in several]
    line = f"{listed(names)} {'has' if len(names) == 1 else 'have'} not fitted the training data"
    config = several[0].runs[0].config
    samples = (several[0].runs[0].data or {}).get("train")
    epochs, size, lr = (config.get(key) for key in ("epochs", "batch_size", "lr"))
    ways = ["a longer training"]
    if samples and epochs and size and config.get("budget") is None:
        steps = math.ceil(samples / size)
        if epochs * steps < ENOUGH_STEPS:
            line += f": {epochs} epochs are only {epochs * steps:,} steps on this data set"
        ways = [f"more epochs ({max(2 * epochs, math.ceil(ENOUGH_STEPS / steps))}, now {epochs})"]
        ways += [f"smaller batches ({SMALL_BATCH}, now {size})"] if size > SMALL_BATCH else []
    if base and base.train_accuracy and base.fitted:
        line = f"{line}; {base.name} has"
        ways += _nearer_the_base(several[0])
    elif isinstance(lr, (int, float)):
        ways.append(f"another learning rate ({lr / 10:g}, now {lr:g})")
    return f"{line}. Try {' or '.join(filter(None, [', '.join(ways[:-1]), ways[-1]]))}."


def _is_behind(summary: MethodSummary, base: MethodSummary) -> bool:
    least = BEHIND if summary.accuracy or not base.test_loss else (BEHIND_LOSS - 1) * abs(base.test_loss.mean)
    return summary.lead is not None and summary.lead.clear and summary.lead.value < -least


def _behind(several: Sequence[MethodSummary], base: MethodSummary) -> str:
    names = []
    for summary in several:
        if summary.gain:
            names.append(f"{summary.name} ({-summary.gain.value:.1f} points)")
        elif summary.test_loss and base.test_loss:
            names.append(f"{summary.name} ({summary.test_loss.mean / base.test_loss.mean:.3g} times its test loss)")
    fits = " though fitted" if any(each.train_accuracy for each in several) else ""
    ways = list(dict.fromkeys(way for each in several for way in _nearer_the_base(each)))
    tuned = any(run.config.get("tuned") for each in several for run in each.runs)
    ways.append("another method" if tuned else "--tune 4, which searches rho on held-out training data")
    return f"Behind {base.name}{fits}: {listed(names)}. Try {' or '.join(ways)}."


def _slow(several: Sequence[MethodSummary], base: MethodSummary) -> str:
    names = [f"{each.name} {each.time_ratio:.2f} times (its passes count {each.counted_ratio:.2f})" for each in several]
    return (
        f"Dearer here than counted, in {_time_of(base)}: {listed(names)}. With a small model or batch "
        f"a pass costs its calls, however few its samples. Use larger batches, or a method that took less time."
    )


def _nearer_the_base(summary: MethodSummary) -> list[str]:
    """Return settings of the method that would bring it nearer to the base."""
    settings = recorded_settings(summary.runs[0])
    ways = []
    if isinstance(settings.get("gamma"), float) and settings["gamma"] < 1:
        ways.append(f"gamma 1, with which all samples train (now {settings['gamma']:g})")
    if isinstance(settings.get("rho"), (int, float)) and settings["rho"] > 0:
        ways.append(f"a smaller rho (now {settings['rho']:g})")
    return ways
