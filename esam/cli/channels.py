"""How are our words printed where the terminal or the pipe knows no more than ASCII?"""

from __future__ import annotations

import codecs
import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SPELT = {"±": "+/-", "×": "x", "–": "-", "—": "-", "…": "...", "²": "^2", "≤": "<=", "≥": ">=", "·": ".", "•": "*"}
HANDLER = "esam.spelt"


def print_anywhere() -> None:
    """Let both channels spell what they cannot show: a sign must not cost anyone a result."""
    codecs.register_error(HANDLER, _spelt)
    for channel in (sys.stdout, sys.stderr):
        if isinstance(channel, io.TextIOWrapper):
            channel.reconfigure(errors=HANDLER)


def _spelt(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(SPELT.get(sign, "?") for sign in signs), error.end


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print a warning inside this block as a sentence, without the line of code that it comes from."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"esam: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
