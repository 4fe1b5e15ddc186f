"""How do options come from a file, and how are they written into one?

A file holds what would be typed: ``batch_size = 64`` is ``--batch-size 64``. Its words stand before those that are
typed, so that these win, and what is wrong with a value is told by the same parser.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from esam.train.names import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTION = "--config"


def take_file(arguments: list[str], known: Collection[str]) -> list[str]:
    """Return the arguments with what ``--config FILE`` says in front of them; keys that are no options are refused."""
    words = [word.partition("=") for word in arguments]
    places = [number for number, (word, _, _) in enumerate(words) if word == OPTION]
    if not places:
        return arguments
    last = places[-1]
    _, equals, name = words[last]
    if not equals:
        if last + 1 == len(arguments):
            raise ValueError(f"{OPTION} wants a file, such as {OPTION} run.toml")
        name = arguments[last + 1]
    return [*words_of(Path(name), known), *arguments]


def words_of(path: Path, known: Collection[str]) -> list[str]:
    """Return what a file says as it would be typed."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path} ({OPTION}) cannot be read: {error.strerror}; esam train --print-config makes one"
        ) from error
    except ValueError as error:  # TOML's own kind, or bytes that are no text
        raise ValueError(f"{path} ({OPTION}) is no TOML: {error}") from error
    words: list[str] = []
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ValueError(f"{path} ({OPTION}) has a key {key!r} that is no option.{did_you_mean(name, known)}")
        words += _typed(path, name, value)
    return words


def toml_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """Give a line of TOML for each value; what is None is left out, as TOML has no word for it."""
    for name, value in values.items():
        if value is not None:
            yield f"{name} = {_written(value)}"


def _typed(path: Path, name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    if isinstance(value, list):
        return [option, *map(str, value)]
    if isinstance(value, (str, int, float)):
        return [f"{option}={value}"]
    raise ValueError(f"{path} ({OPTION}): {name} must be a word, a number, true, false or a list of them, got {value}")


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False)
