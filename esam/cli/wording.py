"""How does a message name an option? As it is typed: ``--batch-size``, where Python's name is ``batch_size``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from functools import cache

PLAIN = ("jobs", "tune", "methods", "seeds", "images", "groups", "vmap", "steps", "m", "rounds", "weights")
"""Options of commands that are no settings of a run."""


def as_typed(message: str) -> str:
    """Return a message with the options in it as they are typed on the command line."""
    names = _names()
    any_name, underscored = _either(names), _either(name for name in names if "_" in name)
    apart = r"(?<![\w/.'\"=-])"  # not inside a path, a word, or what was typed so already
    rules = [
        (rf"{apart}({any_name})=(?=[\w'\"([+-])", "{} "),  # size=32
        (rf"{apart}({any_name})=", "{}"),  # pass size=, such as
        (rf"{apart}({underscored})(?![\w/.'\"])", "{}"),
        (rf"{apart}({any_name})(?= must be | is a share | is for pictures)", "{}"),
        (rf"(?<=takes no )({any_name})\b", "{}"),
        (rf"(?:(?<=lower )|(?<=raise )|(?<=\) or ))({_either(['lr', 'rho'])})\b", "{}"),
    ]
    for pattern, form in rules:
        message = re.sub(pattern, lambda found, form=form: form.format(_option(found[1])), message)  # type: ignore[misc]
    return message


@cache
def _names() -> tuple[str, ...]:
    from esam.optim import METHODS
    from esam.train.config import Config

    own = {name for method in METHODS.values() for name in method.options()}
    return tuple(sorted({field.name for field in fields(Config)} - {"settings"} | own | set(PLAIN)))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _either(names: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True))
