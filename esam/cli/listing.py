"""``esam methods``, ``esam models`` and ``esam recipes``: what can be named."""

from __future__ import annotations

from dataclasses import dataclass

from esam.report.sheets import Form, Sheet, formatted

from .parsing import parse


@dataclass(frozen=True)
class ListOptions:
    """What every list can be asked for."""

    format: Form = "table"
    """How the list is printed."""


@dataclass(frozen=True)
class MethodsOptions(ListOptions):
    """The methods that --method and --methods can name: what a step costs (SGD 3, SAM 6), and their settings."""


@dataclass(frozen=True)
class ModelsOptions(ListOptions):
    """The models that --model can name, with their sizes."""


@dataclass(frozen=True)
class RecipesOptions(ListOptions):
    """The recipes that `esam compare` and `esam train` can name."""


def methods(arguments: list[str]) -> None:
    """``esam methods``: what can be named."""
    options = parse("methods", MethodsOptions, arguments)
    from esam.optim import METHODS

    rows = []
    for name, method in sorted(METHODS.items(), key=lambda row: row[1].kind == "study"):
        settings = ", ".join(f"{key}={value}" for key, value in method.effective().items() if value is not None)
        rows.append((name, f"{method.units():.3g}", method.named("SGD"), method.summary, settings))
    if options.format == "table":
        for name, units, title, summary, settings in rows:
            print(f"{name:16} {units:>5} units  {f'{title}: {summary}':78} {settings}".rstrip())
    else:
        print(formatted([Sheet("", ("name", "units", "title", "summary", "settings"), tuple(rows))], options.format))


def models(arguments: list[str]) -> None:
    """``esam models``: what can be named."""
    options = parse("models", ModelsOptions, arguments)
    from esam.train.models import MODELS

    if options.format == "table":
        for name, model in MODELS.items():
            print(f"{name:14} {model.parameters:>11,} parameters  {model.summary}")
    else:
        rows = tuple((name, str(model.parameters), model.summary) for name, model in MODELS.items())
        print(formatted([Sheet("", ("name", "parameters", "summary"), rows)], options.format))


def recipes(arguments: list[str]) -> None:
    """``esam recipes``: what can be named."""
    options = parse("recipes", RecipesOptions, arguments)
    from esam.recipes import RECIPES

    rows = tuple((name, (recipe.__doc__ or "").splitlines()[0]) for name, recipe in RECIPES.items())
    if options.format == "table":
        for name, summary in rows:
            print(f"{name:20} {summary}")
    else:
        print(formatted([Sheet("", ("name", "summary"), rows)], options.format))
