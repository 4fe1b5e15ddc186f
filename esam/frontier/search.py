"""How are learning rate, weight decay and radius chosen? By the same few trials for everyone, on a validation split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from esam.train.config import Config

from .entrants import Entrant
from .regimes import Regime

SEARCH_SEED = 100
SEARCH_LENGTH = 0.5
"""A trial's epochs, as a share of the run's."""
EVALUATIONS = 4
"""How often a run is evaluated on the test set."""


@dataclass(frozen=True)
class Point:
    """A trial: factors on the regime's learning rate and weight decay, and the number of the knob's value."""

    lr: float = 1.0
    weight_decay: float = 1.0
    value: int = 0


_EVERYONE = (Point(), Point(lr=0.5, weight_decay=4), Point(lr=2))
WITHOUT_KNOB = (*_EVERYONE, Point(weight_decay=4))
WITH_KNOB = (*_EVERYONE, Point(value=1))
"""The default comes first."""


def points(entrant: Entrant) -> tuple[Point, ...]:
    """Return an entrant's trials; every entrant has the same number."""
    return WITHOUT_KNOB if entrant.knob is None else WITH_KNOB


def trial(regime: Regime, entrant: Entrant, point: Point) -> Config:
    """Return the configuration of a trial: shorter, on a validation split, evaluated at its end."""
    config = _configured(regime, entrant, point, SEARCH_LENGTH)
    return replace(config, seed=SEARCH_SEED, validation=True, evaluate_every=config.epochs)


def final(regime: Regime, entrant: Entrant, point: Point, seed: int) -> Config:
    """Return the configuration of a run on the test set."""
    config = _configured(regime, entrant, point, 1.0)
    return replace(config, seed=seed, evaluate_every=max(1, config.epochs // EVALUATIONS))


def best_point(tried: Sequence[Point], accuracies: Sequence[float]) -> Point:
    """Return the point of the highest validation accuracy; the first, which is the default, where others are equal."""
    if len(tried) != len(accuracies) or not tried:
        raise ValueError(f"one accuracy is needed for each trial, got {len(accuracies)} for {len(tried)}")
    return tried[max(range(len(tried)), key=lambda i: (accuracies[i], -i))]


def _configured(regime: Regime, entrant: Entrant, point: Point, share: float) -> Config:
    start = regime.config
    return replace(
        start,
        method=entrant.method,
        settings=entrant.settings_at(point.value),
        epochs=max(1, math.ceil(start.epochs * entrant.length * share)),
        batch_size=round(start.batch_size * entrant.batch),
        lr=start.lr * point.lr,
        weight_decay=start.weight_decay * point.weight_decay,
    )
