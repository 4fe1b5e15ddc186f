"""What will a run do: with which settings, once every default has its value?"""

from __future__ import annotations

from typing import Any

from .config import Config, find_method


def effective_settings(config: Config) -> dict[str, Any]:
    """Return the method's settings as they take effect, without those that are not set."""
    found = find_method(config.method).effective(config.settings)
    return {name: value for name, value in found.items() if value is not None}


def told_method(config: Config) -> str:
    """Say the method's settings: "rho 0.05, gamma 0.5"."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in effective_settings(config).items()) or "no settings"


def told_run(config: Config) -> str:
    """Say the whole run: base optimizer, length, batches, schedule, data and model."""
    base = {"lr": config.lr, "weight decay": config.weight_decay}
    if config.optimizer == "sgd":
        base["momentum"] = config.momentum
    length = f"{config.epochs} epochs" if config.budget is None else f"{config.budget:g} seconds"
    optimizer = ", ".join([config.optimizer, *(f"{name} {value:g}" for name, value in base.items()), config.schedule])
    return f"{length} of {config.model} on {config.data}, batches of {config.batch_size}; {optimizer}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
