"""How did earlier versions write a run down? Read here once, so that nothing else need know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALIASES = {"sgd": "base"}
"""Other names of methods."""
_ONCE_FIELDS = {"rho": "rho", "beta": "beta", "gamma": "gamma", "ranking": "ranking", "choose": "mask", "m": "m"}
"""Settings of methods that were fields of a configuration, and what they are called now."""


def modern_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as it is written now."""
    if "settings" in values or "method" not in values:
        return dict(values)
    method = ALIASES.get(values["method"], values["method"])
    settings = {new: values[old] for old, new in _ONCE_FIELDS.items() if values.get(old) is not None}
    if method in ("esam", "esam-swp"):  # what these names meant by default then
        settings.setdefault("mask", "suffix")
    if method == "esam":
        settings.setdefault("ranking", "random")
        if (settings["mask"], settings["ranking"]) == ("suffix", "random"):
            method = "esam-random"
            del settings["mask"], settings["ranking"]
    settings = {name: value for name, value in settings.items() if value not in ("exact", "independent")}  # as ESAM is
    kept = {name: value for name, value in values.items() if name not in _ONCE_FIELDS}
    return {**kept, "method": method, "settings": settings}


def modern_run(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first line of a record as it is written now."""
    if "settings" in line["config"] or "method" not in line["config"]:
        return dict(line)
    config = modern_config(line["config"])
    name = "ESAM-random" if config["method"] == "esam-random" else line["name"]
    return {**line, "config": config, "method": config["method"], "name": name}
