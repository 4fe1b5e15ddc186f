"""How are options read from a TOML file, and written into one? ``batch_size = 64`` is ``--batch-size 64``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """Return the entries of a file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path} (--config) cannot be read: {error.strerror}; esam train --print-config makes one"
        ) from error
    except ValueError as error:  # TOML's own kind, or bytes that are no text
        raise ValueError(f"{path} (--config) is no TOML: {error}") from error


def toml_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """Give a line of TOML for each value; what is None is left out, as TOML has no word for it."""
    for name, value in values.items():
        if value is not None:
            yield f"{name} = {_written(value)}"


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False)
