"""How do words on a command line become options? A dataclass says which there are, its docstrings what they mean."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from esam.train.config import Config, did_you_mean, find_method

if TYPE_CHECKING:
    from esam.runs.plan import Comparison

FIXED, POSITIONAL = "fixed", "positional"
"""How a field may be marked, as in ``Annotated[Path, POSITIONAL]``: not an option at all, or a word without a name."""
FIRST = ("data", "model", "method", "methods", "seeds", "epochs", "lr", "batch_size", "out")
"""Options that a command's help begins with."""
SPLIT = ("methods", "seeds", "tune_over", "track")
"""Lists whose entries have no comma in them, so that a,b is understood like a b."""
TYPES = {int: ("N", "a whole number"), float: ("X", "a number"), Path: ("PATH", "a path"), str: ("TEXT", "a word")}
"""What help and errors call a value of a type."""
KNOBS = "Settings of a method, such as --rho: `esam methods NAME` lists them. `esam recipes` lists the recipes."


class UsageError(ValueError):
    """The words on the command line cannot be read."""


@dataclass(frozen=True)
class Option:
    """One option of a command, or one positional word."""

    name: str
    kind: Any
    default: Any
    help: str
    positional: bool = False

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return f"--{self.name.replace('_', '-')}"


def parse(command: str, options: type[Any], arguments: list[str], *, recipe: bool = False, **defaults: Any) -> Any:
    """Return a command's options; ``defaults`` apply where the arguments say nothing.

    A field that is a dataclass itself gives its fields as options. Asked for help, this prints it and exits.
    """
    listed = list(options_of(options, defaults))
    parser = _parser(command, options, listed, recipe)
    found, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        names = [option.flag for option in listed if not option.positional]
        stray = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        raise UsageError(f"unknown option {stray}.{did_you_mean(stray, names)} See esam {command} --help")
    values = {}
    for option in listed:
        if (words := getattr(found, option.name, None)) is not None:
            values[option.name] = _convert(option, words)
    return _built(options, defaults, values)


def options_of(cls: type[Any], defaults: Mapping[str, Any]) -> Iterator[Option]:
    """Yield the options that a dataclass has, those of dataclasses inside it included."""
    hints, docs = typing.get_type_hints(cls, include_extras=True), _field_docs(cls)
    for field in dataclasses.fields(cls):
        kind, marks = hints[field.name], ()
        if typing.get_origin(kind) is Annotated:
            kind, *marks = typing.get_args(kind)  # type: ignore[assignment]
        if FIXED in marks or typing.get_origin(kind) in (Mapping, dict):
            continue
        default = defaults.get(field.name, _default(field))
        if dataclasses.is_dataclass(kind):
            yield from options_of(typing.cast(type, kind), {} if default is dataclasses.MISSING else vars(default))
        else:
            yield Option(field.name, kind, default, docs.get(field.name, ""), POSITIONAL in marks)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _built(cls: type[Any], start: Mapping[str, Any], typed: Mapping[str, Any]) -> Any:
    """Return an instance of the class: what was typed, by the options' names, else what ``start`` has."""
    hints, fields = typing.get_type_hints(cls), dict(start)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            inner = start.get(field.name, _default(field))
            fields[field.name] = _built(hints[field.name], {} if inner is dataclasses.MISSING else vars(inner), typed)
        elif field.name in typed:
            fields[field.name] = typed[field.name]
    return cls(**fields)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def _parser(command: str, options: type[Any], listed: Sequence[Option], recipe: bool) -> argparse.ArgumentParser:
    positionals = " ".join(_positional(option) for option in listed if option.positional)
    words = " ".join(filter(None, [f"esam {command}", "[RECIPE]" if recipe else "", positionals, "[OPTIONS]"]))

    def wrapped(prog: str) -> argparse.HelpFormatter:
        return argparse.HelpFormatter(prog, width=80, max_help_position=24)

    about = inspect.getdoc(options) or ""
    parser = _Parser(
        f"esam {command}",
        words,
        about,
        KNOBS if recipe else None,
        add_help=False,
        formatter_class=wrapped,
        allow_abbrev=False,
    )
    main, more = parser.add_argument_group("options"), parser.add_argument_group("more options")
    trains = any(option.name == "epochs" for option in listed)
    first = FIRST if trains else tuple(option.name for option in listed)
    for option in sorted(listed, key=lambda option: (*first, option.name).index(option.name)):
        _add(parser if option.positional else main if option.name in first else more, option)
    (more if trains else main).add_argument("-h", "--help", action="help", help="Show this text.")
    return parser


def _positional(option: Option) -> str:
    several = typing.get_origin(option.kind) is tuple
    word = option.name.upper()
    return f"{word}..." if several else word if option.default is dataclasses.MISSING else f"[{word}]"


def _add(group: Any, option: Option) -> None:
    kind, several = _element(option.kind)
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    metavar = f"{{{','.join(map(str, choices))}}}" if choices else TYPES.get(kind, ("TEXT",))[0]
    words = option.help.replace("%", "%%")
    if option.positional:
        one = {"nargs": "*"} if several else {"nargs": "?"} if option.default is not dataclasses.MISSING else {}
        group.add_argument(option.name, metavar=option.name.upper(), help=words, **one)
    elif kind is bool:
        on = option.flag if not option.default else f"--no-{option.flag[2:]}"
        group.add_argument(on, dest=option.name, action="store_const", const=not option.default, help=words)
        other = f"--no-{option.flag[2:]}" if not option.default else option.flag
        group.add_argument(other, dest=option.name, action="store_const", const=option.default, help=argparse.SUPPRESS)
    else:
        default = _shown(option.default)
        words = f"{words} (default: {default})" if default else words
        group.add_argument(
            option.flag, dest=option.name, metavar=metavar, help=words, **({"nargs": "*"} if several else {})
        )


def _shown(value: Any) -> str:
    if value is dataclasses.MISSING or value is None or value == "" or value == ():
        return ""
    return (" ".join(map(str, value)) if isinstance(value, tuple) else str(value)).replace("%", "%%")


def _element(kind: Any) -> tuple[Any, bool]:
    """Return the type of a value without None, and whether there are several."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (each for each in typing.get_args(kind) if each is not type(None))
    several = typing.get_origin(kind) is tuple
    return (typing.get_args(kind)[0] if several else kind), several


def _convert(option: Option, words: Any) -> Any:
    """Return what was typed as the option's type."""
    kind, several = _element(option.kind)
    if not several:
        return words if kind is bool else _value(option.flag, kind, words)
    parts = [part for word in words for part in (word.split(",") if option.name in SPLIT else [word]) if part]
    if option.name == "seeds":
        return _seeds(parts)
    name = option.name if option.positional else option.flag
    return tuple(_value(name, kind, part) for part in parts)


def _value(name: str, kind: Any, text: str) -> Any:
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if text not in choices:
            raise UsageError(
                f"{name} takes {' or '.join(map(str, choices))}, got {text!r}.{did_you_mean(text, choices)}"
            )
        return text
    if kind is Path and not text:
        raise UsageError(f"{name} takes a path, got an empty word")
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(f"{name} takes {TYPES[kind][1]}, got {text!r}") from error


def _seeds(words: Sequence[str]) -> tuple[int, ...]:
    """Read seeds: one number is how many (3: 0 1 2), several are themselves, 5..7 is a range."""
    found: list[int] = []
    for word in words:
        first, dots, last = word.partition("..")
        low = _value("--seeds", int, first)
        found += range(low, _value("--seeds", int, last) + 1) if dots else [low]
    counted = len(words) == 1 and ".." not in words[0] and found[0] > 0
    if any(abs(seed) >= 2**63 for seed in found):
        raise UsageError(f"--seeds takes numbers below 2^63, got {max(found, key=abs)}")
    return tuple(range(found[0])) if counted else tuple(found)


def _field_docs(cls: type[Any]) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, on one line."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except (OSError, TypeError):  # made at run time
            continue
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, str):
                found[field.target.id] = " ".join(text.split())
    return found


# what the commands share that train: a recipe to start with, settings of the methods


def parse_run(
    command: str,
    options: type[Any],
    arguments: list[str],
    *,
    shape: type[Config] = Config,
    of_recipe: Sequence[str] = (),
    **changes: Any,
) -> tuple[Any, Config, Comparison | None]:
    """Return a command's options, the configuration they come to, and the recipe that they begin with, if any.

    Every setting that some method of the registry has is an option too, such as --rho. ``shape`` is the configuration
    as the command has it, with what it cannot use marked as fixed; ``of_recipe`` are further options that a recipe has
    values for, and ``changes`` go before its configuration. Without a recipe, the length suits the data.
    """
    recipe = _take_recipe(arguments)
    start = dataclasses.replace(recipe.config if recipe else Config(), **changes)
    defaults = {name: getattr(recipe, name) for name in of_recipe} if recipe else {}
    begun = shape(**{**vars(start), "settings": {}})
    if {"-h", "--help"} & {*arguments}:  # without torch, which the methods need
        parse(command, options, arguments, recipe=True, config=begun, **defaults)
    from esam.optim import METHODS

    knobs: dict[str, type] = {}
    for method in METHODS.values():
        knobs |= method.options()
    fields: list[Any] = [(name, kind | None, dataclasses.field(default=None)) for name, kind in knobs.items()]
    extended = dataclasses.make_dataclass(options.__name__, fields, bases=(options,), frozen=True)
    extended.__doc__, extended.__module__ = options.__doc__, options.__module__
    parsed = parse(command, extended, arguments, recipe=True, config=begun, **defaults)
    asked = {name: getattr(parsed, name) for name in knobs if getattr(parsed, name) is not None}
    config = Config(**{**vars(parsed.config), "settings": {**start.settings, **asked}})
    return parsed, config if recipe else _suited_length(config, arguments), recipe


def _suited_length(config: Config, arguments: list[str]) -> Config:
    """Return the configuration with a length and a batch size that suit the data, as far as none was asked for."""
    if config.budget is not None:
        return config
    from esam.train.build import configured_task
    from esam.train.config import suited
    from esam.train.samples import sample_count

    words = {word.partition("=")[0].replace("_", "-") for word in arguments}
    try:
        samples = sample_count(configured_task(config).train)
    except (ValueError, ImportError, OSError, RuntimeError):  # told with all else that is wrong
        return config
    return suited(config, samples, epochs="--epochs" not in words, batch_size="--batch-size" not in words)


def _take_recipe(arguments: list[str]) -> Comparison | None:
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
    fields = {option.name: option.kind for option in options_of(Config, {}) if option.name not in ("method", "seed")}
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
        kind = options.get(name) or _element(fields[name])[0]
        found.setdefault(method, {})[name] = (
            _value(f"--set {method}.{name}", kind, value) if kind is not bool else (value.lower() == "true")
        )
    return found
