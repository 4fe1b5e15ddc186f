"""How do words on a command line become options? Dataclasses say which there are, their docstrings what they mean."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from esam.runs.plan import Comparison, configured
from esam.train.config import Config, check_known, did_you_mean, find_method

FIRST = ("data", "model", "method", "methods", "seeds", "epochs", "lr", "batch_size", "out")
"""Options that the help of a command which trains begins with."""
SPLIT = ("methods", "seeds", "tune_over")
"""Lists whose entries have no comma in them, so that a,b is understood like a b."""
TYPES = {int: ("N", "a whole number"), float: ("X", "a number"), Path: ("PATH", "a path"), str: ("TEXT", "a word")}
"""What help and errors call a value of a type."""
KNOBS = "Settings of a method, such as --rho: `esam methods NAME` lists them. `esam recipes` lists the recipes."

T = TypeVar("T")


class UsageError(ValueError):
    """The words on the command line cannot be read."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def parse(command: str, cls: type[T], arguments: list[str]) -> T:
    """Return a command's options. Asked for help, this prints it and exits."""
    (options,), _ = parse_all(command, [cls], arguments)
    return options  # type: ignore[no-any-return]


def parse_all(
    command: str,
    classes: Sequence[type[Any]],
    arguments: list[str],
    *,
    defaults: Mapping[str, Any] | None = None,
    knobs: Mapping[str, type] | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """Return an instance of each dataclass, and by their names the options that were typed.

    A field without a default has no name before its value. ``defaults`` go before those of the classes, and ``knobs``
    are options that the help does not list. A command whose classes hold a Config trains, and may begin with a recipe;
    one with ``methods`` and ``seeds`` has no option for a single one.
    """
    trains, defaults = Config in classes, defaults or {}
    parser = _Parser(
        f"esam {command}",
        description=inspect.getdoc(classes[0]),
        epilog=KNOBS if trains else None,
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=80, max_help_position=24),
    )
    main, more = parser.add_argument_group("options"), parser.add_argument_group("more options")
    fields = {field.name: (cls, field.default) for cls in classes for field in dataclasses.fields(cls)}
    first = [name for name in FIRST if trains and name in fields]
    parser.usage = "%(prog)s" + trains * " [RECIPE]"
    for name in dict.fromkeys([*first, *fields]):
        cls, default = fields[name]
        kind, several = _element(typing.get_type_hints(cls)[name])
        about = _field_docs(cls).get(name, "").replace("%", "%%")
        if f"{name}s" in fields or typing.get_origin(kind) is Mapping:
            continue
        if default is MISSING:
            shown, nargs = f"{name.upper()}{several * '...'}", "+" if several else None
            parser.usage += f" {shown}"
            parser.add_argument(name, metavar=name.upper(), type=_reader(name, kind, several), help=about, nargs=nargs)
        else:
            group = more if trains and name not in first else main
            _add_option(group, name, kind, several, defaults.get(name, default), about)
    parser.usage += " [OPTIONS]"
    (more if trains else main).add_argument("-h", "--help", action="help", help="Show this text.")
    for name, kind in (knobs or {}).items():
        _add_option(more, name, *_element(kind), None, argparse.SUPPRESS)
    namespace, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        stray = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        hint = did_you_mean(stray, parser._option_string_actions)
        raise UsageError(f"unknown option {stray}.{hint} See esam {command} --help")
    typed = {n: tuple(itertools.chain(*v)) if isinstance(v, list) else v for n, v in vars(namespace).items()}
    values = {**defaults, **typed}
    return [
        cls(**{f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values}) for cls in classes
    ], typed


def _add_option(group: Any, name: str, kind: Any, several: bool, default: Any, about: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=about)
        return
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    metavar = f"{{{','.join(choices)}}}" if choices else TYPES[kind][0]
    if default not in (None, "", ()) and about != argparse.SUPPRESS:
        shown = " ".join(map(str, default)) if several else str(default)
        about += f" (default: {shown.replace('%', '%%')})"
    nargs = "*" if several else None
    group.add_argument(flag, metavar=metavar, type=_reader(name, kind, several), help=about, nargs=nargs)


def _element(kind: Any) -> tuple[Any, bool]:
    """Return the type of a value without None, and whether there are several."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (each for each in typing.get_args(kind) if each is not type(None))
    several = typing.get_origin(kind) is tuple
    return (typing.get_args(kind)[0] if several else kind), several


def _reader(name: str, kind: Any, several: bool) -> Callable[[str], Any]:
    """Return the function that argparse reads a word with; of several values, a word may hold more than one."""
    if several:
        return lambda text: [_value(kind, part) for part in (text.split(",") if name in SPLIT else [text]) if part]
    return lambda text: _value(kind, text)


def _value(kind: Any, text: str) -> Any:
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if text in choices:
            return text
        raise argparse.ArgumentTypeError(f"takes {' or '.join(choices)}, got {text!r}.{did_you_mean(text, choices)}")
    try:
        if kind is Path and not text:  # which would be the working folder
            raise ValueError(text)
        return {"true": True, "false": False}.get(text.lower(), False) if kind is bool else kind(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"takes {TYPES[kind][1]}, got {text!r}") from error


def _field_docs(cls: type[Any]) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, on one line."""
    docs: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        for field, after in itertools.pairwise(body.body):  # type: ignore[attr-defined]
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, str):
                docs[field.target.id] = " ".join(text.split())
    return docs


# what the commands share that train: a recipe to start with, settings of the methods


def parse_run(
    command: str, options: type[T], arguments: list[str], **changes: Any
) -> tuple[T, Comparison, dict[str, Any]]:
    """Return a command's options, the comparison they come to, and what was typed.

    Every setting that some method of the registry has is an option too, such as --rho. The comparison begins with the
    recipe, if one is named, with ``changes``; what is typed goes before it. Without a recipe, the length suits the
    data.
    """
    recipe: Comparison | None = None
    if name := take_word(arguments):
        from esam.recipes import RECIPES

        check_known("recipe", name, RECIPES)
        recipe = RECIPES[name]()
    start = recipe or Comparison(Config())
    start = dataclasses.replace(start, config=dataclasses.replace(start.config, **changes))
    knobs: dict[str, type] = {}
    if not {"-h", "--help"} & {*arguments}:  # which needs no torch, as the methods do
        from esam.optim import METHODS

        knobs = {name: kind for row in METHODS.values() for name, kind in row.options().items()}
    defaults = {**(vars(recipe) if recipe else {}), **vars(start.config)}
    (of_command, config), typed = parse_all(command, [options, Config], arguments, defaults=defaults, knobs=knobs)
    asked = {name: value for name, value in typed.items() if name in knobs}
    config = dataclasses.replace(config, settings={**start.config.settings, **asked})
    settings = {m: {k: v for k, v in chosen.items() if k not in typed} for m, chosen in start.settings.items()}
    config = config if recipe else _suited_length(config, typed)
    return of_command, dataclasses.replace(start, config=config, settings=settings), typed


def single_run(comparison: Comparison, typed: Mapping[str, Any]) -> Config:
    """Return a comparison's run of the one method and seed that its configuration names."""
    config = configured(comparison, comparison.config.method, comparison.config.seed)
    check_taken(comparison, typed, [config])
    return config


def check_taken(comparison: Comparison, typed: Mapping[str, Any], configs: Sequence[Config]) -> None:
    """Refuse a method's setting that was typed and that no run has a use for."""
    for name in comparison.config.settings:
        if name in typed and not any(name in config.settings for config in configs):
            methods = ", ".join(dict.fromkeys(config.method for config in configs))
            raise ValueError(f"{methods} takes no --{name.replace('_', '-')}; leave it out, or see esam methods")


def _suited_length(config: Config, typed: Collection[str]) -> Config:
    """Return the configuration with a length and a batch size that suit the data, as far as none was asked for."""
    if config.budget is not None:
        return config
    from esam.train.config import suited
    from esam.train.datasets import load_data
    from esam.train.samples import sample_count

    try:
        samples = sample_count(load_data(config).train)
    except (ValueError, ImportError, OSError, RuntimeError):  # told with all else that is wrong
        return config
    return suited(config, samples, epochs="epochs" not in typed, batch_size="batch_size" not in typed)


def take_word(arguments: list[str]) -> str:
    """Take a word that is no option off the front of the arguments, if there is one."""
    return arguments.pop(0) if arguments and not arguments[0].startswith("-") else ""


def settings_by_method(words: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Read sam.rho=0.1 as {"sam": {"rho": 0.1}}, each value by the type that the method or the run has for it."""
    hints, settings = typing.get_type_hints(Config), dict[str, dict[str, Any]]()
    for word in words:
        method, dot, rest = word.partition(".")
        name, equals, value = rest.partition("=")
        if not dot or not equals:
            raise UsageError(f"--set takes method.setting=value, such as sam.rho=0.1, got {word!r}")
        kind, _ = _element({**hints, **find_method(method).options()}.get(name, str))  # the plan refuses unknown names
        try:
            settings.setdefault(method, {})[name] = _value(kind, value)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--set {method}.{name} {error}") from error
    return settings
