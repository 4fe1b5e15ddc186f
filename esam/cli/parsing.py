"""What do the commands share? Options from a dataclass, a recipe as a start, settings of one method."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from esam.train.config import Config, find_method
from esam.train.effective import effective_settings
from esam.train.names import did_you_mean

from .configfile import take_file, toml_lines

if TYPE_CHECKING:
    from esam.compare.plan import Comparison

ConfigFile = Annotated[Path | None, tyro.conf.arg(name="config", metavar="FILE")]
"""The option --config of a command that reads its options from a file too."""


def parse(command: str, options: type[Any], arguments: list[str], **defaults: Any) -> Any:
    """Return a command's options; ``defaults`` stand where the arguments say nothing."""
    default = options(**defaults) if defaults else None
    extra = {} if default is None else {"default": default}
    hidden = (tyro.conf.SuppressFixed,)  # a mapping that no word on a command line can give
    return tyro.cli(options, prog=f"esam {command}", args=arguments, config=hidden, **extra)


def parse_run(
    command: str,
    options: type[Any],
    arguments: list[str],
    start: Config,
    *,
    shape: type[Config] = Config,
    **defaults: Any,
) -> tuple[Any, Config]:
    """Return a command's options and the configuration they come to, from one to start with.

    Every setting that some method of the registry has is an option too, such as --rho; a file that --config names is
    read first. ``shape`` is the configuration as the command has it, with what it cannot use marked as fixed.
    """
    from esam.compare.where import Where
    from esam.optim import METHODS

    takers: dict[tuple[str, type], list[str]] = {}
    for name, method in METHODS.items():
        for option in method.options().items():
            takers.setdefault(option, []).append(name)
    fields: list[Any] = []
    for (setting, kind), names in takers.items():
        words = tyro.conf.arg(help=f"Of {', '.join(names)}; if not given, the method's own default.")
        fields.append((setting, Annotated[kind | None, words], dataclasses.field(default=None)))
    whole = dataclasses.make_dataclass(
        options.__name__, fields, bases=(options,), frozen=True, namespace={"__doc__": options.__doc__}
    )
    own = {f.name for f in dataclasses.fields(whole)}
    places = {f.name for f in dataclasses.fields(Where)} if "where" in own else set()
    known = own - {"config", "file", "print_config", "where"} | places | set(config_names(shape))
    begun = shape(**{**vars(start), "settings": {}})
    parsed = parse(command, whole, take_file(arguments, known), config=begun, **defaults)
    asked = {setting: getattr(parsed, setting) for setting, _ in takers if getattr(parsed, setting) is not None}
    return parsed, Config(**{**vars(parsed.config), "settings": {**start.settings, **asked}})


def config_names(shape: type[Config]) -> list[str]:
    """Return the fields of a configuration that a command line can set."""
    fixed = () if shape is Config else inspect.get_annotations(shape)
    return [field.name for field in dataclasses.fields(shape) if field.name not in {"settings", "tuned", *fixed}]


def config_text(command: str, config: Config, shape: type[Config], more: Mapping[str, Any]) -> str:
    """Return everything that takes effect as a file that --config reads.

    Defaults of the method's own stand in it as remarks: said out loud, they would be refused by another method.
    """
    whole = {name: getattr(config, name) for name in config_names(shape)} | dict(config.settings) | dict(more)
    lines = [f"# esam {command} --config FILE; what is typed beside it wins", *toml_lines(_filled(whole))]
    if shape is Config:
        own = {k: v for k, v in effective_settings(config).items() if k not in config.settings}
        lines += [f"# {line}  # {config.method}'s own default" for line in toml_lines(own)]
    return "\n".join(lines)


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not None and value != ()}


def take_recipe(arguments: list[str]) -> Comparison | None:
    """Take a recipe's name off the front of the arguments."""
    if not arguments or arguments[0].startswith("-"):
        return None
    from esam.recipes import RECIPES

    name = arguments.pop(0)
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}.{did_you_mean(name, RECIPES)} There are: {', '.join(RECIPES)}")
    return RECIPES[name]()


def settings_by_method(words: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Read sam.rho=0.1 as {"sam": {"rho": 0.1}}, each value by the type that the method or the run has for it."""
    fields = {f.name for f in dataclasses.fields(Config)} - {"method", "seed", "settings", "tuned"}
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        method, dot, rest = word.partition(".")
        name, equals, value = rest.partition("=")
        if not dot or not equals:
            raise ValueError(f"--set takes method.setting=value, such as sam.rho=0.1, got {word!r}")
        options = find_method(method).options()
        if name not in options and name not in fields:
            hint = did_you_mean(name, {*options, *fields})
            raise ValueError(f"{method} has no setting {name!r} of its own.{hint}")
        found.setdefault(method, {})[name] = _value(name, value, options.get(name), word)
    return found


def _value(name: str, text: str, kind: type | None, word: str) -> Any:
    if kind is None:  # a field of the run
        return getattr(tyro.cli(Config, args=[f"--{name.replace('_', '-')}", text]), name)
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{name} must be of type {kind.__name__}, got {word!r}") from error
