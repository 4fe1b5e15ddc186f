"""Who goes on after the screening, and who is run with more seeds?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

Accuracies = Mapping[str, Mapping[str, float]]
"""{entrant: {regime: accuracy in percent}}"""

BELOW_BASE = 2.0
BEATEN_BY = 1.0
FEWEST_METHODS, MOST_METHODS = 12, 15
FINALISTS = 4


def survivors(
    found: Accuracies,
    units: Mapping[str, float],
    *,
    controls: Collection[str],
    protected: Collection[str],
    fewest: int = FEWEST_METHODS,
    most: int = MOST_METHODS,
) -> list[str]:
    """Return who goes on, in the order given: all controls, the protected, and every method that is not hopeless.

    A method is hopeless if its mean accuracy lies more than 2 points under the base's, or if someone who costs no more
    is better in every regime of the screening by more than a point. Where fewer than 12 methods would be left, the best
    of the hopeless by mean accuracy go on as well; where more, only the best that are not protected.
    """
    means = {name: fmean(accuracies.values()) for name, accuracies in found.items()}
    staying = {
        name for name in found if name in controls or name in protected or not _hopeless(name, found, means, units)
    }
    missing = fewest - len(staying.difference(controls))
    others = sorted((name for name in found if name not in staying), key=lambda name: -means[name])
    staying.update(others[: max(0, missing)])
    open_places = max(0, most - len([name for name in found if name in protected and name not in controls]))
    rest = sorted(staying.difference(controls, protected), key=lambda name: -means[name])
    staying.difference_update(rest[open_places:])
    return [name for name in found if name in staying]


def _hopeless(name: str, found: Accuracies, means: Mapping[str, float], units: Mapping[str, float]) -> bool:
    if means[name] < means["base"] - BELOW_BASE:
        return True
    return any(
        all(found[other][regime] > accuracy + BEATEN_BY for regime, accuracy in found[name].items())
        for other in found
        if other != name and units[other] <= units[name]
    )


def ranks(accuracies: Mapping[str, float]) -> dict[str, float]:
    """Return each entrant's rank, 1 for the highest accuracy; equals share the mean of their ranks."""
    values = sorted(accuracies.values(), reverse=True)
    return {name: values.index(value) + (values.count(value) + 1) / 2 for name, value in accuracies.items()}


def mean_ranks(found: Accuracies) -> dict[str, float]:
    """Return each entrant's rank, averaged over the regimes that everyone has run in."""
    shared = set.intersection(*(set(accuracies) for accuracies in found.values()))
    by_regime = [ranks({name: found[name][regime] for name in found}) for regime in sorted(shared)]
    return {name: fmean(one[name] for one in by_regime) for name in found}


def finalists(found: Accuracies, *, controls: Collection[str], count: int = FINALISTS) -> list[str]:
    """Return the best methods by mean rank, and SAM and the base, which they are compared with."""
    order = mean_ranks(found)
    best: Sequence[str] = sorted((name for name in found if name not in controls), key=lambda name: order[name])
    return list(dict.fromkeys([*best[:count], *(name for name in ("sam", "base") if name in found)]))
