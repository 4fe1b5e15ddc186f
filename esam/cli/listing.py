"""``esam methods``, ``esam models`` and ``esam recipes``: what can be named."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from esam.report.sheets import Form, Sheet, formatted
from esam.train.config import did_you_mean

from .parsing import POSITIONAL, parse

WIDTH = 80


@dataclass(frozen=True)
class ListOptions:
    """What can be named, as a list."""

    format: Form = "table"
    """How the list is printed."""


@dataclass(frozen=True)
class MethodsOptions(ListOptions):
    """The methods that --method and --methods can name; with a NAME, its settings."""

    name: Annotated[str, POSITIONAL] = ""
    """A method, to see what each of its settings does."""


def methods(arguments: list[str]) -> None:
    """``esam methods``: a line a method, or one method with its settings."""
    options = parse("methods", MethodsOptions, arguments)
    from esam.optim import METHODS

    if options.name:
        if options.name not in METHODS:
            raise ValueError(f"unknown method {options.name!r}.{did_you_mean(options.name, METHODS)} See esam methods")
        _print_settings(options.name, options.format)
        return
    rows = [(name, f"{row.units() / 3:.3g}", f"{row.named('SGD')}: {row.summary}") for name, row in METHODS.items()]
    _print(("name", "cost", "summary"), rows, options.format)
    if options.format == "table":
        print("\ncost: passes of a step, counted; 1 is the base optimizer alone.\nesam methods NAME: its settings")


def models(arguments: list[str]) -> None:
    """``esam models``: a line a model."""
    options = parse("models", ListOptions, arguments)
    from esam.train.models import MODELS

    rows = [(name, f"{model.parameters:,}", model.summary) for name, model in MODELS.items()]
    _print(("name", "parameters", "summary"), rows, options.format)


def recipes(arguments: list[str]) -> None:
    """``esam recipes``: a line a recipe."""
    options = parse("recipes", ListOptions, arguments)
    from esam.recipes import RECIPES

    rows = [(name, (recipe.__doc__ or "").splitlines()[0]) for name, recipe in RECIPES.items()]
    _print(("name", "summary"), rows, options.format)


def _print_settings(name: str, form: Form) -> None:
    from esam.optim import METHODS

    row = METHODS[name]
    sentences = {key: text for other in reversed(METHODS.values()) for key, text in setting_docs(other.build).items()}
    sentences |= setting_docs(row.build)
    values = row.effective()
    rows = [(f"--{key}".replace("_", "-"), _value(values.get(key)), sentences.get(key, "")) for key in row.options()]
    if form == "table":
        print(textwrap.fill(f"{row.named('SGD')}: {row.summary}", WIDTH))
        print(
            f"Cost of a step, counted: {row.units() / 3:.3g} times the base's.\n{'' if rows else 'It has no settings.'}"
        )
    _print(("setting", "default", "what it does"), rows, form)


def setting_docs(build: type[Any]) -> dict[str, str]:
    """Return what a class's docstring says of each argument; what it leaves to another class ("As for SAM") is not."""
    found: dict[str, str] = {}
    for each in reversed(build.__mro__):
        _, _, args = inspect.cleandoc(each.__doc__ or "").partition("\nArgs:\n")
        block = textwrap.dedent(re.split(r"\n\n|\n(?=\S)", args)[0])
        for entry in re.split(r"\n(?=\S)", block):
            names, colon, text = entry.partition(": ")
            if colon and not text.startswith("As for"):
                found |= {name.strip(): " ".join(text.replace("``", "`").split()) for name in names.split(",")}
    return found


def _value(value: Any) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _print(head: Sequence[str], rows: Sequence[Sequence[str]], form: Form) -> None:
    """Print a list: on a terminal with its last column wrapped."""
    if form != "table":
        print(formatted([Sheet("", tuple(head), tuple(map(tuple, rows)))], form))
        return
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(head) - 1)]
    for row in rows:
        cells = (
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=False)
        )
        start = "  ".join(cells) + "  "
        print(textwrap.fill(row[-1], WIDTH, initial_indent=start, subsequent_indent=" " * len(start)).rstrip() or start)
