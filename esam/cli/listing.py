"""``esam methods``, ``esam models`` and ``esam recipes``: what can be named."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from esam.train.config import check_known

from .parsing import parse, take_word

WIDTH = 80


@dataclass(frozen=True)
class MethodsOptions:
    """The methods that --method and --methods can name; `esam methods NAME`: one of them with its settings."""


@dataclass(frozen=True)
class ListOptions:
    """What can be named, as a list."""


def methods(arguments: list[str]) -> None:
    """``esam methods``: a line a method, or one method with its settings."""
    name = take_word(arguments)
    parse("methods", MethodsOptions, arguments)
    from esam.optim import METHODS

    if name:
        check_known("method", name, METHODS)
        _print_method(name)
        return
    _print([(name, f"{row.units() / 3:.3g}", f"{row.named('SGD')}: {row.summary}") for name, row in METHODS.items()])
    print("\ncost: passes of a step, counted; 1 is the base optimizer alone.\nesam methods NAME: its settings")


def models(arguments: list[str]) -> None:
    """``esam models``: a line a model."""
    parse("models", ListOptions, arguments)
    from esam.train.models import MODELS

    _print([(name, model.summary) for name, model in MODELS.items()])


def recipes(arguments: list[str]) -> None:
    """``esam recipes``: a line a recipe."""
    parse("recipes", ListOptions, arguments)
    from esam.recipes import RECIPES

    _print([(name, (recipe.__doc__ or "").splitlines()[0]) for name, recipe in RECIPES.items()])


def _print_method(name: str) -> None:
    from esam.optim import METHODS

    row = METHODS[name]
    print(textwrap.fill(f"{row.named('SGD')}: {row.summary}", WIDTH))
    print(f"Cost of a step, counted: {row.units() / 3:.3g} times the base's.\n")
    sentences = {key: text for other in reversed(METHODS.values()) for key, text in setting_docs(other.build).items()}
    sentences |= setting_docs(row.build)
    values = {key: row.effective().get(key) for key in row.options()}
    shown = {key: "not set" if v is None else f"{v:g}" if isinstance(v, float) else str(v) for key, v in values.items()}
    _print([(f"--{key}".replace("_", "-"), shown[key], sentences.get(key, "")) for key in shown])


def setting_docs(build: type[Any]) -> dict[str, str]:
    """Return what a class's docstring says of each argument; what it leaves to another class ("As for SAM") is not."""
    docs: dict[str, str] = {}
    for each in reversed(build.__mro__):
        _, _, args = inspect.cleandoc(each.__doc__ or "").partition("\nArgs:\n")
        block = textwrap.dedent(re.split(r"\n\n|\n(?=\S)", args)[0])
        for entry in re.split(r"\n(?=\S)", block):
            names, colon, text = entry.partition(": ")
            if colon and not text.startswith("As for"):
                docs |= {name.strip(): " ".join(text.replace("``", "`").split()) for name in names.split(",")}
    return docs


def _print(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, the last one wrapped."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, text in rows:
        start = "".join(f"{cell:{width}}  " for cell, width in zip(cells, widths, strict=False))
        print(textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start)) or start.rstrip())
