"""``esam methods``, ``esam models`` and ``esam recipes``: what can be named."""

from __future__ import annotations

from dataclasses import dataclass

from .parsing import parse


@dataclass(frozen=True)
class MethodsOptions:
    """The methods that --method and --methods can name: what a step costs (SGD 3, SAM 6), and their settings."""


@dataclass(frozen=True)
class ModelsOptions:
    """The models that --model can name, with their sizes."""


@dataclass(frozen=True)
class RecipesOptions:
    """The recipes that `esam compare` and `esam train` can name."""


def methods(arguments: list[str]) -> None:
    """``esam methods``: what can be named."""
    parse("methods", MethodsOptions, arguments)
    from esam.optim import METHODS

    for name, method in sorted(METHODS.items(), key=lambda row: row[1].kind == "study"):
        settings = ", ".join(f"{key}={value}" for key, value in method.effective().items() if value is not None)
        told = f"{method.named('SGD')}: {method.summary}"
        print(f"{name:16} {method.units():5.3g} units  {told:78} {settings}".rstrip())


def models(arguments: list[str]) -> None:
    """``esam models``: what can be named."""
    parse("models", ModelsOptions, arguments)
    from esam.train.models import MODELS

    for name, model in MODELS.items():
        print(f"{name:14} {model.parameters:>11,} parameters  {model.summary}")


def recipes(arguments: list[str]) -> None:
    """``esam recipes``: what can be named."""
    parse("recipes", RecipesOptions, arguments)
    from esam.recipes import RECIPES

    for name, recipe in RECIPES.items():
        print(f"{name:20} {(recipe.__doc__ or '').splitlines()[0]}")
