"""Which command makes these runs?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from esam.optim import METHODS
from esam.report.groups import SeedGroup
from esam.train.config import Config

APART = {"method", "seed", "settings", "notes", "tuned", "threads", "device"}
"""Fields of a configuration that the command says in other words, or that change nothing."""


def commands_for(groups: Sequence[SeedGroup]) -> list[str]:
    """Return the calls of ``esam compare`` that make these runs again, one for each variant of a method; or none.

    They are worked out from the records, so they are the same whichever way those were made. A comparison from Python
    has a model and data that a command line cannot name.
    """
    records = [record for group in groups for record in group.runs]
    if any(record.method not in METHODS or "model" in (record.data or {}) for record in records):
        return []
    layers: list[dict[str, SeedGroup]] = []
    for group in groups:
        free = next((layer for layer in layers if group.method not in layer), None)
        if free is None:
            layers.append(free := {})
        free[group.method] = group
    return [_command(layer) for layer in layers]


def _command(groups: Mapping[str, SeedGroup]) -> str:
    configs = {method: group.runs[0].config for method, group in groups.items()}
    seeds = sorted({run.seed for group in groups.values() for run in group.runs})
    common, specific = _split(configs)
    words = ["esam", "compare", *(word for name, value in common.items() for word in _option(name, value))]
    alone = len(seeds) == 1 and seeds[0] > 0  # a number by itself would be how many
    words += ["--methods", *sorted(configs, key=list(METHODS).index)]
    words += ["--seeds", *([f"{seeds[0]}..{seeds[0]}"] if alone else map(str, seeds))]
    if specific:
        words += ["--set", *(f"{method}.{name}={_word(value)}" for (method, name), value in specific.items())]
    return shlex.join(words)


def _split(configs: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """Return what all methods share apart from the defaults, and what one has of its own."""
    usual = Config().as_json()
    common: dict[str, Any] = {}
    specific: dict[tuple[str, str], Any] = {}
    for name in (name for name in usual if name not in APART):
        values = {method: config.get(name, usual[name]) for method, config in configs.items()}
        same = next(iter(values.values()))
        if all(value == same for value in values.values()):
            common |= {name: same} if same != usual[name] else {}
        else:
            specific |= {(method, name): value for method, value in values.items() if value != usual[name]}
    settings_of = {method: config.get("settings", {}) for method, config in configs.items()}
    for name in dict.fromkeys(name for settings in settings_of.values() for name in settings):
        takers = [m for m in configs if name in METHODS[m].options() and name not in METHODS[m].settings]
        having = {method: settings[name] for method, settings in settings_of.items() if settings.get(name) is not None}
        if list(having) == takers and len({*having.values()}) == 1:
            common[name] = having[takers[0]]
        else:
            specific |= {(method, name): value for method, value in having.items()}
    return common, specific


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, _word(value)]


def _word(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
