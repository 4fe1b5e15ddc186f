"""What do the commands share? Options from a dataclass, a recipe as a start, settings of one method."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tyro

from esam.train.config import Config
from esam.train.names import did_you_mean

if TYPE_CHECKING:
    from esam.compare.plan import Comparison


def parse(command: str, options: type[Any], arguments: list[str], **defaults: Any) -> Any:
    """Return a command's options; ``defaults`` stand where the arguments say nothing."""
    default = options(**defaults) if defaults else None
    extra = {} if default is None else {"default": default}
    return tyro.cli(options, prog=f"esam {command}", args=arguments, **extra)


def take_recipe(arguments: list[str]) -> Comparison | None:
    """Take a recipe's name off the front of the arguments."""
    if not arguments or arguments[0].startswith("-"):
        return None
    from esam.recipes import RECIPES

    name = arguments.pop(0)
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}.{did_you_mean(name, RECIPES)} There are: {', '.join(RECIPES)}")
    return RECIPES[name]()


def settings_of(words: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Read sam.rho=0.1 as {"sam": {"rho": 0.1}}, each value by the type of its field."""
    fields = {f.name: f for f in dataclasses.fields(Config)}
    settings: dict[str, dict[str, Any]] = {}
    for word in words:
        method, dot, rest = word.partition(".")
        name, equals, value = rest.partition("=")
        if not dot or not equals or name not in fields:
            hint = did_you_mean(name, fields)
            raise ValueError(f"--set takes method.setting=value, such as sam.rho=0.1, got {word!r}.{hint}")
        parsed = tyro.cli(Config, args=[f"--{name.replace('_', '-')}", value])
        settings.setdefault(method, {})[name] = getattr(parsed, name)
    return settings
